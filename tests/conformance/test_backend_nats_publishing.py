"""Publications without a uid in a real NATS: the messages in JetStream, and retries after a lost answer."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from itertools import count

import pytest
from nats.aio.msg import Msg

from ropewalk.adapters.backends.nats import NatsBackend
from ropewalk.adapters.backends.nats.link import NatsLink, Stored
from ropewalk.adapters.backends.nats.names import NatsOptions
from ropewalk.connections.nats import NatsAddress
from ropewalk.core.rules import Rulebook
from ropewalk.core.stats import Stats
from ropewalk.engine.broker import Broker
from ropewalk.model.errors import Unanswered, Unavailable
from ropewalk.model.history import Gap, Replay
from ropewalk.model.messages import Position, Publication, build_transient, expand_runs
from ropewalk.model.rules import StreamRules
from ropewalk.model.sessions import EndRequest
from ropewalk.ports import NodeName
from tests.conformance.nats_nodes import history
from tests.services import NatsServer, nats_server
from tests.waiting import until

pytestmark = pytest.mark.tier("standard")


class ForgetfulLink(NatsLink):
    """Can lose the answer to the next write, and can answer the next reads as a replica that is `behind`."""

    lose_one = False
    behind = 0
    last_behind: Stored | None = None
    during_send: Callable[[], None] | None = None

    async def send(self, subject: str, payload: bytes, headers: Mapping[str, str] | None = None) -> None:
        if self.during_send is not None:
            call, self.during_send = self.during_send, None
            call()
            raise Unavailable("not sent")
        await super().send(subject, payload, headers)

    async def request(self, subject: str, payload: bytes, headers: Mapping[str, str] | None = None) -> Msg:
        answer = await super().request(subject, payload, headers)
        if self.lose_one and not subject.startswith("$JS.API."):
            self.lose_one = False
            raise Unanswered("the answer was lost")
        return answer

    async def last(self, jet: str, subject: str) -> Stored | None:
        if self.last_behind is not None:
            behind, self.last_behind = self.last_behind, None
            return behind
        return await super().last(jet, subject)

    async def following(self, jet: str, sequence: int, subject: str) -> Stored | None:
        if self.behind:
            self.behind -= 1
            return None
        return await super().following(jet, sequence, subject)


PREFIXES = count()


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with nats_server() as started:
        yield started


@pytest.fixture
async def backends(server: NatsServer) -> AsyncIterator[list[NatsBackend]]:
    """Of two nodes that share a prefix with no other test."""
    prefix = f"test{next(PREFIXES)}"
    rules = Rulebook(StreamRules(history_limit=100_000))
    address = NatsAddress((server.url,))
    options = NatsOptions(prefix, shards=1, link_type=ForgetfulLink)
    made = [NatsBackend(address, NodeName(node, node), rules, time.time, options=options) for node in ("one", "two")]
    for backend in made:
        await backend.start()
    yield made
    for backend in made:
        await backend.stop()


@pytest.fixture
def backend(backends: list[NatsBackend]) -> NatsBackend:
    return backends[0]


def broker_over(backend: NatsBackend) -> Broker:
    return Broker(backend.streams, backend.feed, Stats(), time.time, random.random)


async def written(backend: NatsBackend) -> int:
    """Messages in the JetStream stream of all streams."""
    count: int = (await backend.link.api(f"STREAM.INFO.{backend.jet_name('a')}"))["state"]["messages"]
    return count


async def test_publication_without_uid_is_one_message_without_a_marker(backend: NatsBackend) -> None:
    broker = broker_over(backend)
    await broker.publish([Publication("a", b"1")])
    assert await written(backend) == 1
    await broker.publish([Publication("a", b"2"), Publication("a", b"3")])
    assert await written(backend) == 2
    await broker.publish([Publication("a", b"4", uid="u")])
    assert await written(backend) == 4


async def test_publication_is_registered_once_after_a_lost_answer(backend: NatsBackend) -> None:
    broker = broker_over(backend)
    assert isinstance(backend.link, ForgetfulLink)
    backend.link.lose_one = True
    receipt, *_ = await broker.publish([Publication("a", b"1")])
    assert (receipt.offset, receipt.duplicate) == (1, False)
    assert (await broker.publish([Publication("a", b"2")]))[0].offset == 2
    assert await written(backend) == 2


async def test_publication_is_registered_once_with_a_replica_that_is_behind(backend: NatsBackend) -> None:
    """As a former leader that was paused: for a moment it answers from its old state."""
    broker = broker_over(backend)
    assert isinstance(backend.link, ForgetfulLink)
    await broker.publish([Publication("a", b"1")])
    for number in (1, 2, 3):
        backend.link.lose_one, backend.link.behind = True, number
        assert (await broker.publish([Publication("a", b"2")]))[0].offset == number + 1
    assert await written(backend) == 4


async def test_replica_that_is_behind_makes_no_gap(backend: NatsBackend) -> None:
    link = backend.link
    assert isinstance(link, ForgetfulLink)
    first, *_ = await backend.streams.append([Publication("a", b"1")])
    shard = backend.streams._shard_for("a")
    before = await shard.last("a")
    await backend.streams.append([Publication("a", b"2")])
    link.last_behind = before
    assert await backend.streams.replay("a", Position(first.epoch, 2)) == Replay("a", first.epoch, 2)
    assert isinstance(await backend.streams.replay("a", Position(first.epoch, 3)), Gap)


KILLS = 3
BETWEEN_KILLS = 200
"""Acknowledged publications."""

SECONDS = 60.0


async def test_transient_message_that_is_published_during_a_failed_send_is_sent(backends: list[NatsBackend]) -> None:
    one, two = backends
    received: list[bytes] = []

    async def ignore(request: EndRequest) -> int:
        return 0

    await two.feed.start(lambda messages: received.extend(each.payload for each in expand_runs(messages)), ignore)
    await two.feed.listen("a")
    lost, sent = (build_transient(Publication("a", payload), time.time()) for payload in (b"lost", b"sent"))
    assert isinstance(one.link, ForgetfulLink)
    one.link.during_send = lambda: one.feed.publish([sent])
    one.feed.publish([lost])
    await until(lambda: received)
    assert received == [b"sent"]


@pytest.mark.tier("all")
async def test_publications_are_registered_once_while_nats_is_killed(server: NatsServer, backends: list[NatsBackend]) -> None:
    numbers, acknowledged, ended = count(), list[bytes](), asyncio.Event()

    async def publish(broker: Broker) -> None:
        """Sends each once; the refused ones are not retried."""
        while not ended.is_set():
            payload = b"%d" % next(numbers)
            try:
                await broker.publish([Publication("a", payload)])
                acknowledged.append(payload)
            except Unavailable:
                await asyncio.sleep(0.02)

    async def continues() -> None:
        wanted = len(acknowledged) + BETWEEN_KILLS
        async with asyncio.timeout(SECONDS):
            while len(acknowledged) < wanted:
                await asyncio.sleep(0.01)

    publishers = [asyncio.create_task(publish(broker_over(backend))) for backend in backends for _ in range(8)]
    for _ in range(KILLS):
        await continues()
        server.kill()
        server.start()
    await continues()
    ended.set()
    await asyncio.gather(*publishers)
    times = Counter(await history(backends[0], "a"))
    assert set(acknowledged) <= times.keys()
    assert set(times.values()) == {1}
