"""The journal of a cluster, over a real Redis and a real NATS: the node with a data directory records for all nodes."""

import json
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.server import RunningServer, running_server
from tests.services import NatsServer, RedisServer, nats_server, redis_server
from tests.waiting import wait_until

Place = tuple[str, str, int]
"""Stream, epoch and offset."""


@pytest.fixture(params=["redis", "nats"])
def store(request: pytest.FixtureRequest) -> Iterator[RedisServer | NatsServer]:
    with redis_server() if request.param == "redis" else nats_server() as server:
        yield server


@pytest.fixture
def cluster(store: RedisServer | NatsServer) -> tuple[str, ...]:
    """The flags of a node of the cluster."""
    if isinstance(store, RedisServer):
        return ("--public", "--broker", "redis", "--redis_url", store.url)
    return ("--public", "--broker", "nats", "--nats_servers", store.url, "--nats_shards", "2")


def ask(server: RunningServer, path: str, body: object = None) -> tuple[int, Any]:
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(server.url + path, data)) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as refused:
        return refused.code, json.load(refused)


def reasons(server: RunningServer) -> str:
    return " ".join(ask(server, "/health")[1].get("reasons", ()))


def recording(server: RunningServer) -> None:
    wait_until(lambda: not reasons(server), lambda: reasons(server))


def register(server: RunningServer, first: int, last: int) -> list[Place]:
    """Publications to three streams, one request each."""
    places = []
    for number in range(first, last + 1):
        status, answer = ask(server, "/api/publish", {"stream": f"s{number % 3}", "data": str(number), "uid": f"u{number}"})
        assert status == 201, answer
        [position] = answer["publications"]
        places.append((position["stream"], position["epoch"], position["offset"]))
    return places


def recorded(server: RunningServer) -> Counter[Place]:
    """The publications in the journal of a node, with their number of rows."""
    found: Counter[Place] = Counter()
    for span in ask(server, "/journal")[1]["spans"]:
        if span["first"] == span["end"]:
            continue
        with urllib.request.urlopen(f"{server.url}/journal/{span['shard']}?from={span['first']}&to={span['end']}") as answer:
            rows = pa.ipc.open_stream(answer.read()).read_all().to_pylist()
        found.update((row["stream"], row["epoch"], row["offset"]) for row in rows if row["event"] == "publish")
    return found


def test_recorder_that_was_killed_and_restarted_records_without_a_gap(cluster: tuple[str, ...], tmp_path: Path) -> None:
    records = ("--data_dir", str(tmp_path))
    with running_server(*cluster) as other:
        with running_server(*cluster, *records) as recorder:
            recording(recorder)
            registered = register(recorder, 1, 10) + register(other, 11, 40)
            recorder.kill()
        registered += register(other, 41, 60)
        with running_server(*cluster, *records) as recorder:
            registered += register(recorder, 61, 70)
            wait_until(lambda: len(recorded(recorder)) >= len(registered), lambda: recorded(recorder))
            assert recorded(recorder) == Counter(registered)
            recording(recorder)
        recording(other)


def test_second_node_with_a_data_directory_is_unhealthy_until_the_first_is_gone(
    cluster: tuple[str, ...], tmp_path: Path
) -> None:
    with running_server(*cluster, "--data_dir", str(tmp_path / "one")) as first:
        recording(first)
        with running_server(*cluster, "--data_dir", str(tmp_path / "two")) as second:
            wait_until(lambda: "another node records" in reasons(second), lambda: reasons(second))
            before = register(second, 1, 5)
            wait_until(lambda: len(recorded(first)) == 5, lambda: recorded(first))
            assert recorded(first) == Counter(before)
            assert recorded(second) == Counter()
            first.kill()
            after = register(second, 6, 10)
            recording(second)
            wait_until(lambda: len(recorded(second)) >= 5, lambda: recorded(second))
            assert recorded(second) == Counter(after)


def test_node_whose_store_is_down_stops_cleanly_and_seals_its_journal(
    cluster: tuple[str, ...], store: RedisServer | NatsServer, tmp_path: Path
) -> None:
    with running_server(*cluster, "--data_dir", str(tmp_path)) as server:
        recording(server)
        registered = register(server, 1, 5)
        wait_until(lambda: len(recorded(server)) == 5, lambda: recorded(server))
        store.kill()
        wait_until(lambda: bool(reasons(server)), lambda: server.log())
        assert server.stop() == 0, server.log()
        assert server.log().endswith("stopped\n")
    store.start()
    with running_server(*cluster, "--data_dir", str(tmp_path)) as server:
        recording(server)
        assert recorded(server) == Counter(registered)
