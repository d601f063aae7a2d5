"""Keys with the same partition key have one holder, so all nodes deliver their messages in the order of publishing."""

from collections.abc import Iterator

import aiohttp
import pytest

from ropewalk.protocol.broky.frames import Format, Pushed, Reason, Refused, Run, Subscribe, Subscribed
from ropewalk.protocol.broky.runs import build_run, split_payloads
from tests.broky_client import client
from tests.cable import cable
from tests.ring.ring import Ring, running_ring
from tests.server import RunningServer

KEYS = [b"{room}/%d" % number for number in range(8)]
MESSAGES = 400


@pytest.fixture(scope="module", params=["with history", "ephemeral"])
def shared_ring(request: pytest.FixtureRequest) -> Iterator[Ring]:
    flags = ("--history_limit", "0") if request.param == "ephemeral" else ()
    with running_ring("abc", *flags) as ring:
        yield ring


@pytest.fixture
async def ring(shared_ring: Ring) -> Ring:
    await shared_ring.healthy()
    return shared_ring


async def test_each_node_delivers_keys_of_one_partition_in_the_order_of_publishing(ring: Ring) -> None:
    for producer in ring.nodes.values():
        await _push_and_receive(producer, [*ring.nodes.values()])


async def _push_and_receive(producer: RunningServer, nodes: list[RunningServer]) -> None:
    async with client(producer) as pushing, client(nodes[0]) as one, client(nodes[1]) as two, client(nodes[2]) as three:
        subscribers = (one, two, three)
        for subscriber in subscribers:
            subscriber.send(*(Subscribe(ref, key) for ref, key in enumerate(KEYS, 1)))
            await subscriber.some(Subscribed, len(KEYS))
        numbers = range(1, MESSAGES + 1)
        pushing.send(
            *(build_run(KEYS[number % len(KEYS)], [b"%d" % number], number, key_partition=b"room") for number in numbers)
        )
        answered: list[int] = []
        while len(answered) < MESSAGES:
            answered += (await pushing.expect(Pushed)).refs
        for subscriber in subscribers:
            received: list[int] = []
            while len(received) < MESSAGES:
                received += map(int, split_payloads(await subscriber.expect(Run)))
            assert received == [*numbers]


async def test_partition_key_that_is_not_in_the_name_is_refused(ring: Ring) -> None:
    """A subscriber could not find the holder."""
    node = ring.nodes["a"]
    async with client(node) as producer, client(node) as subscriber:
        await subscriber.subscribe(b"lone")
        producer.send(build_run(b"lone", [b"1"], 1, key_partition=b"room"))
        refused = await producer.expect(Refused)
        assert (refused.ref, refused.reason) == (1, Reason.PARTITION_CHANGED)
        assert "'{room}/lone'" in refused.text
        producer.send(
            build_run(b"lone", [b"2"], 2, key_partition=b"lone"), build_run(b"{room}/x", [b"3"], 3, key_partition=b"room")
        )
        answers = [await producer.expect(Pushed)]
        while sum(len(answer.refs) for answer in answers) < 2:
            answers.append(await producer.expect(Pushed))
        assert split_payloads(await subscriber.expect(Run)) == [b"2"]
    body = [{"stream": "fine", "data": "1"}, {"stream": "lone", "data": "1", "partition_key": "room"}]
    async with aiohttp.ClientSession() as http, http.post(f"{node.url}/_broadcast", json=body) as response:
        assert response.status == 409
        answer = await response.json()
        assert answer["index"] == 1
        assert "in braces" in answer["error"]


@pytest.mark.parametrize("shared_ring", ["ephemeral"], indirect=True, scope="module")
async def test_runs_of_streams_without_history_reach_clients_of_all_nodes_undivided(ring: Ring) -> None:
    async with (
        cable(ring.nodes["a"]) as web,
        client(ring.nodes["b"]) as subscriber,
        client(ring.nodes["c"]) as pusher,
    ):
        keys = [f"now/{number}" for number in range(12)]
        for key in keys:
            await web.subscribe(key)
            await subscriber.subscribe(key.encode())
        for ref, key in enumerate(keys, 1):
            pusher.send(Run(ref, 2, key=key.encode(), sizes=(3, 3), payload=b'"1""2"', format=Format.JSON))
        answered: list[int] = []
        while len(answered) < len(keys):
            answered += (await pusher.expect(Pushed)).refs
        runs = await subscriber.some(Run, len(keys))
        assert sorted((run.key.decode(), run.count, run.offset) for run in runs) == sorted((key, 2, 0) for key in keys)
        assert sorted(await web.messages(2 * len(keys))) == ["1"] * len(keys) + ["2"] * len(keys)
