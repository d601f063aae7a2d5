"""`ropewalk ring` and `/api/ring` at a running ring."""

import json
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping

import msgspec
import pytest

from ropewalk.cli.main import main
from ropewalk.core.ring import locate_stream
from ropewalk.core.signatures import API_PHRASE, RING_PHRASE, derive
from ropewalk.model.ring import RingReport
from tests.ring.ring import CHANGES, FLAGS, RING_SECRET, SECONDS, SHARDS, Ring, running_ring
from tests.server import RunningServer, running_server
from tests.services import free_port


@pytest.fixture
def ring() -> Iterator[Ring]:
    """For tests that remove or kill a node."""
    with running_ring("abc") as ring:
        for node in ring.nodes.values():
            until(node, lambda report: all_held(report, 3))
        yield ring


@pytest.fixture(scope="module")
def shared() -> Iterator[Ring]:
    with running_ring("abc") as ring:
        for node in ring.nodes.values():
            until(node, lambda report: all_held(report, 3))
        yield ring


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command derives its keys from it."""
    monkeypatch.setenv("ROPEWALK_SECRET", RING_SECRET)


def request(node: RunningServer, change: object = None, headers: Mapping[str, str] = CHANGES) -> tuple[int, dict[str, object]]:
    body = None if change is None else json.dumps(change).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(f"{node.url}/api/ring", body, dict(headers))) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def until(node: RunningServer, holds: Callable[[dict[str, object]], bool]) -> dict[str, object]:
    deadline = time.monotonic() + SECONDS
    while True:
        status, report = request(node)
        if status == 200 and holds(report):
            return report
        assert time.monotonic() < deadline, report
        time.sleep(0.05)


def nodes(report: dict[str, object]) -> dict[str, dict[str, object]]:
    listed = report["nodes"]
    assert isinstance(listed, list)
    return {node["name"]: node for node in listed}


def all_held(report: dict[str, object], count: int) -> bool:
    """Whether the ring has `count` nodes, and each holds the shards that it owns."""
    listed = nodes(report)
    return (
        len(listed) == count
        and report["moving"] == report["unavailable"] == 0
        and all(node["owns"] == node["holds"] and node["alive"] for node in listed.values())
    )


def test_removed_node_hands_over_its_shards_and_then_leaves_the_ring(ring: Ring, capsys: pytest.CaptureFixture[str]) -> None:
    a, url = ring.nodes["a"], ring.nodes["a"].url
    assert main(["ring", "--url", url]) == 0
    assert f"A ring of {SHARDS} shards on 3 nodes: term 1, seen by a" in capsys.readouterr().out

    names = [f"{{room-7}}/{name}" for name in ("messages", "typing")]
    for node in ring.nodes.values():
        places = []
        for name in names:
            assert main(["ring", "--stream", name, "--url", node.url, "--json"]) == 0
            places.append(json.loads(capsys.readouterr().out)["place"])
        shard = locate_stream("room-7", SHARDS)
        assert places == [
            {"stream": name, "shard": shard, "owner": "abc"[shard % 3], "holder": "abc"[shard % 3]} for name in names
        ]

    assert main(["ring", "remove", "b", "--lost", "--url", url]) == 1
    assert "b is alive: remove it without --lost" in capsys.readouterr().err

    assert main(["ring", "remove", "b", "--url", url]) == 0
    assert "alive, leaving" in capsys.readouterr().out
    until(a, lambda report: nodes(report)["b"]["holds"] == 0 and report["moving"] == 0)

    assert main(["ring", "add", f"b=127.0.0.1:{ring.ring_ports['b']}", "--url", url]) == 0
    assert "leaving" not in capsys.readouterr().out
    until(a, lambda report: all_held(report, 3))
    assert main(["ring", "remove", "b", "--url", url]) == 0
    until(a, lambda report: nodes(report)["b"]["holds"] == 0 and report["moving"] == 0)
    capsys.readouterr()

    assert main(["ring", "remove", "b", "--url", url, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [node["name"] for node in report["nodes"]] == ["a", "c"]
    assert report["term"] == 5
    for name in "ac":
        until(ring.nodes[name], lambda report: all_held(report, 2))


def test_dead_node_is_only_removed_if_its_shards_are_declared_lost(ring: Ring, capsys: pytest.CaptureFixture[str]) -> None:
    a, url = ring.nodes["a"], ring.nodes["a"].url
    ring.kill("b")
    report = until(a, lambda report: not nodes(report)["b"]["alive"])
    assert report["unavailable"] == nodes(report)["b"]["holds"] != 0

    assert main(["ring", "remove", "b", "--url", url]) == 1
    assert "b does not answer and holds" in capsys.readouterr().err
    assert request(a, {"remove": "b"})[0] == 409

    assert main(["ring", "remove", "b", "--lost", "--url", url]) == 0
    for name in "ac":
        until(ring.nodes[name], lambda report: all_held(report, 2))


def test_server_that_does_not_prove_the_key_is_not_added(shared: Ring) -> None:
    a, before = shared.nodes["a"], request(shared.nodes["a"])
    with socket.create_server(("127.0.0.1", 0)) as stranger, running_server(*FLAGS, "--secret", "another") as alone:
        stranger.settimeout(SECONDS)
        places = {
            f"z=127.0.0.1:{free_port()}": "refused",
            f"z=127.0.0.1:{alone.port}": "no answer in time",
            f"z=127.0.0.1:{shared.ring_ports['b']}": "the node at this address is b, not z",
            f"z=127.0.0.1:{stranger.getsockname()[1]}": "no answer in time",
        }
        for place, reason in places.items():
            status, answer = request(a, {"add": place})
            assert (status, reason in str(answer["error"]).lower()) == (409, True), answer
        connection, _ = stranger.accept()
        with connection:
            connection.settimeout(SECONDS)
            greeting = b"".join(iter(lambda: connection.recv(4096), b""))
    assert set(msgspec.msgpack.decode(greeting[4:])) == {"type", "nonce"}
    assert request(a) == before


def test_change_without_the_key_is_refused_in_public_mode(shared: Ring, capsys: pytest.CaptureFixture[str]) -> None:
    a, before = shared.nodes["a"], request(shared.nodes["a"], headers={})
    assert before[0] == 200
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        stranger.setblocking(False)
        changes = ({"add": f"evil=127.0.0.1:{stranger.getsockname()[1]}"}, {"remove": "b"}, {"remove": "b", "lost": True})
        keys = ["", "wrong", RING_SECRET, derive(RING_SECRET, API_PHRASE), derive(RING_SECRET, RING_PHRASE)]
        for headers in ({}, *({"Authorization": f"Bearer {key}"} for key in keys)):
            assert [request(a, change, headers)[0] for change in changes] == [401] * 3
        with pytest.raises(BlockingIOError):  # no node has connected
            stranger.accept()
    assert main(["ring", "remove", "b", "--url", a.url, "--key", "wrong"]) == 2
    assert "to change a ring, set ROPEWALK_SECRET" in capsys.readouterr().err
    assert request(a, headers={}) == before


INVALID_CHANGES: list[tuple[object, int]] = [
    ({}, 400),
    ({"add": "d"}, 400),
    ({"add": "d=h:1", "remove": "a"}, 400),
    ({"add": "d=h:1", "lost": True}, 400),
    ({"delete": "a"}, 400),
    ([], 400),
    ({"remove": "unknown"}, 409),
]


def test_invalid_change_is_refused_and_changes_nothing(shared: Ring) -> None:
    node = shared.nodes["a"]
    before = request(node)
    answers = [request(node, change) for change, _ in INVALID_CHANGES]
    assert [(change, status) for (change, _), (status, _) in zip(INVALID_CHANGES, answers, strict=True)] == INVALID_CHANGES
    assert all(body["error"] for _, body in answers), answers
    assert request(node) == before


def test_report_without_a_stream_has_all_fields_but_the_place(shared: Ring) -> None:
    assert set(request(shared.nodes["b"])[1]) == set(RingReport.__struct_fields__) - {"place"}


def test_server_without_a_ring_reports_that(capsys: pytest.CaptureFixture[str]) -> None:
    with running_server("--public") as server:
        assert main(["ring", "--url", server.url]) == 2
    assert "started without --ring" in capsys.readouterr().err


def test_wrong_key_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with running_ring("a", "--public=false") as ring:
        assert main(["ring", "--url", ring.nodes["a"].url, "--key", "wrong"]) == 2
    assert "the key is not accepted; pass the key" in capsys.readouterr().err


def test_address_of_a_live_node_is_not_changed(shared: Ring) -> None:
    before = request(shared.nodes["a"])
    for name in "ab":  # itself, and another node
        status, answer = request(shared.nodes["a"], {"add": f"{name}=127.0.0.1:1"})
        assert (status, f"{name} is alive" in str(answer["error"])) == (409, True), answer
    assert request(shared.nodes["a"]) == before


def test_second_process_of_a_node_waits_and_reports_why_until_the_first_ends(ring: Ring) -> None:
    before = request(ring.nodes["a"])[1]
    port = free_port()
    seeds = ",".join(f"{name}=127.0.0.1:{port if name == 'b' else ring.ring_ports[name]}" for name in "abc")
    with running_server(*FLAGS, "--ring", seeds, "--ring_node", "b") as twin:
        until_health(twin, "another process is the node b")
        assert "another process is the node b" in twin.log()
        assert request(ring.nodes["a"])[1] == before
        ring.kill("b")
        until(ring.nodes["a"], lambda report: all_held(report, 3) and nodes(report)["b"]["address"] == f"127.0.0.1:{port}")
        until_health(twin, '{"status":"ok"}')


def until_health(node: RunningServer, part: str) -> None:
    deadline = time.monotonic() + SECONDS
    while part not in (found := health(node)):
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


def health(node: RunningServer) -> str:
    try:
        with urllib.request.urlopen(f"{node.url}/health") as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        return error.read().decode()


def test_directory_of_another_node_is_refused() -> None:
    with running_ring("ab", journal=True) as ring:
        until(ring.nodes["a"], lambda report: all_held(report, 2))
        ring.stop("a")
        ring.stop("b")
        ring.exchange_directories("a", "b")
        with pytest.raises(AssertionError, match="is the directory of node b, but this is a"):
            ring.start("a")
