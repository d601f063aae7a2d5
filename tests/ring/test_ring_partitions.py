"""Keys that share a partition key, on a ring: they have one holder, so they keep their order among each other at every node."""

from collections.abc import Iterator

import aiohttp
import pytest

from ropewalk.protocol.broky.frames import Pushed, Reason, Refused, Run, Subscribe, Subscribed
from ropewalk.protocol.broky.runs import payloads_of, run_of
from tests.broky_client import client
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


async def test_they_keep_their_order_among_each_other_at_every_node(ring: Ring) -> None:
    for producer in ring.nodes.values():
        await _pushed_and_delivered(producer, [*ring.nodes.values()])


async def _pushed_and_delivered(producer: RunningServer, nodes: list[RunningServer]) -> None:
    async with client(producer) as pushing, client(nodes[0]) as one, client(nodes[1]) as two, client(nodes[2]) as three:
        subscribers = (one, two, three)
        for subscriber in subscribers:
            subscriber.send(*(Subscribe(ref, key) for ref, key in enumerate(KEYS, 1)))
            await subscriber.some(Subscribed, len(KEYS))
        numbers = range(1, MESSAGES + 1)
        pushing.send(*(run_of(KEYS[number % len(KEYS)], [b"%d" % number], number, key_partition=b"room") for number in numbers))
        answered: list[int] = []
        while len(answered) < MESSAGES:
            answered += (await pushing.expect(Pushed)).refs
        for subscriber in subscribers:
            got: list[int] = []
            while len(got) < MESSAGES:
                got += map(int, payloads_of(await subscriber.expect(Run)))
            assert got == [*numbers]


async def test_a_partition_key_that_is_not_in_the_name_is_refused(ring: Ring) -> None:
    """Whoever subscribes could not find it."""
    node = ring.nodes["a"]
    async with client(node) as producer, client(node) as subscriber:
        await subscriber.subscribe(b"lone")
        producer.send(run_of(b"lone", [b"1"], 1, key_partition=b"room"))
        refused = await producer.expect(Refused)
        assert (refused.ref, refused.reason) == (1, Reason.PARTITION_CHANGED)
        assert "'{room}/lone'" in refused.text
        producer.send(run_of(b"lone", [b"2"], 2, key_partition=b"lone"), run_of(b"{room}/x", [b"3"], 3, key_partition=b"room"))
        answers = [await producer.expect(Pushed)]
        while sum(len(answer.refs) for answer in answers) < 2:
            answers.append(await producer.expect(Pushed))
        assert payloads_of(await subscriber.expect(Run)) == [b"2"]
    body = [{"stream": "fine", "data": "1"}, {"stream": "lone", "data": "1", "partition_key": "room"}]
    async with aiohttp.ClientSession() as http, http.post(f"{node.url}/_broadcast", json=body) as response:
        assert response.status == 409
        answer = await response.json()
        assert answer["index"] == 1
        assert "in braces" in answer["error"]
