"""Subscriptions by prefix: delivery, and the prefixes that the feed listens to."""

import asyncio

import pytest

from ropewalk.core.rules import Rulebook
from ropewalk.core.stats import Stats
from ropewalk.engine.audience import Group
from ropewalk.engine.hub import Hub
from ropewalk.engine.link import Link
from ropewalk.engine.prefixes import (
    AWAY,
    MAX_PREFIXES,
    MAX_PREFIXES_PER_CONNECTION,
    NOT_HERE,
    TOO_MANY,
    TOO_MANY_OF_ONE,
    Prefixes,
)
from ropewalk.engine.subscription import Subscription
from ropewalk.model.commands import SubscribePrefix
from ropewalk.model.errors import Unavailable
from ropewalk.model.messages import Position, Registered
from ropewalk.model.rules import StreamRules
from ropewalk.model.sessions import Subscribed
from ropewalk.protocol.broky.codec import MESSAGES, BrokyCodec
from ropewalk.protocol.broky.frames import Body, Gap, Reason, Run, Welcome
from ropewalk.protocol.broky.runs import decode, split_payloads
from ropewalk.protocol.broky.splitter import FrameSplitter
from tests.unit.engine.workbench import RecordingConnection, settle


class UnboundedOwner:
    def stalled(self) -> None:
        pass

    def overflowed(self) -> None:
        raise AssertionError("an outbox is full")

    def skipped(self, group: Group, after: Position, upto: Position) -> None:
        pass


class RecordingFeed:
    """A `PrefixFeed` that records its prefixes and waits for `answer` before it returns."""

    exact = False
    reports_losses = True

    def __init__(self) -> None:
        self.listening: list[bytes] = []
        self.answer: asyncio.Future[None] | None = None

    async def listen_prefix(self, prefix: bytes) -> None:
        self.listening.append(prefix)
        if self.answer is not None:
            await asyncio.shield(self.answer)

    def unlisten_prefix(self, prefix: bytes) -> None:
        self.listening = [each for each in self.listening if each != prefix]


class Bench:
    def __init__(self, feed: object | None = None) -> None:
        self.feed = RecordingFeed()
        self.hub = Hub(Stats(), lambda: 0.0)
        self.listened: list[object] = []
        self.prefixes = Prefixes(feed or self.feed, self.hub, str.encode, self.listened.append)  # type: ignore[arg-type]

    def link(self) -> tuple[Link, RecordingConnection]:
        connection = RecordingConnection()
        rules = Rulebook(StreamRules(), ())
        return Link(UnboundedOwner(), connection, BrokyCodec(Welcome(), None), rules, Stats(), 10_000), connection

    async def deliver(self, *streams: str) -> None:
        self.prefixes.deliver([Registered(stream, b"1", 1.0, "", 0) for stream in streams])
        await settle()


def wanted(prefix: str) -> tuple[Subscription, SubscribePrefix]:
    return Subscription(prefix, Subscribed(())), SubscribePrefix(prefix, prefix, prefix.encode())


def got(connection: RecordingConnection) -> list[Body]:
    splitter = FrameSplitter()
    return [decode(frame) for data in connection.written for frame in splitter.feed(data)]


def keys(connection: RecordingConnection) -> list[str]:
    return [body.key.decode() for body in got(connection) if isinstance(body, Run) for _ in split_payloads(body)]


async def test_messages_of_several_streams_keep_their_keys_in_one_write() -> None:
    bench = Bench()
    link, connection = bench.link()
    assert await bench.prefixes.join(link, *wanted("a/")) is None
    await bench.deliver("a/1", "a/2", "b/1", "a/2", "a/", "a")
    assert keys(connection) == ["a/1", "a/2", "a/2", "a/"]
    assert len(connection.written) == 1


async def test_feed_is_unlistened_when_the_last_listener_leaves() -> None:
    bench = Bench()
    (first, one), (second, two) = bench.link(), bench.link()
    subscription, command = wanted("a")
    other, _ = wanted("a")
    await bench.prefixes.join(first, subscription, command)
    await bench.prefixes.join(second, other, command)
    bench.hub.leave(subscription.groups[0], first)
    await bench.deliver("ab")
    assert (keys(one), keys(two), bench.feed.listening) == ([], ["ab"], [b"a", b"a"])
    assert bench.listened == [bench.prefixes]
    assert "ab" in bench.prefixes
    assert "b" not in bench.prefixes
    bench.hub.leave(other.groups[0], second)
    assert bench.feed.listening == []
    assert bench.listened == [bench.prefixes, bench.hub.listened_streams]
    assert not bench.prefixes.by_length


async def test_listener_that_joins_while_the_last_one_leaves_receives_messages() -> None:
    bench = Bench()
    (first, _), (second, connection) = bench.link(), bench.link()
    subscription, command = wanted("a")
    await bench.prefixes.join(first, subscription, command)
    bench.feed.answer = asyncio.get_running_loop().create_future()
    joining = asyncio.create_task(bench.prefixes.join(second, *wanted("a")))
    await settle()
    bench.hub.leave(subscription.groups[0], first)
    bench.feed.answer.set_result(None)
    await joining
    assert b"a" in bench.feed.listening
    await bench.deliver("ab")
    assert keys(connection) == ["ab"]


async def test_listener_that_leaves_before_the_feed_listens_leaves_no_state() -> None:
    bench = Bench()
    link, _ = bench.link()
    bench.feed.answer = asyncio.get_running_loop().create_future()
    joining = asyncio.create_task(bench.prefixes.join(link, *wanted("a")))
    await settle()
    link.lose()
    bench.feed.answer.set_result(None)
    assert await joining is None
    assert (bench.feed.listening, bench.prefixes.by_length) == ([], {})


async def test_failing_feed_and_missing_support_are_distinguished() -> None:
    bench = Bench()
    bench.feed.answer = asyncio.get_running_loop().create_future()
    bench.feed.answer.set_exception(Unavailable("away"))
    link, _ = bench.link()
    assert await bench.prefixes.join(link, *wanted("a")) is AWAY
    assert bench.feed.listening == []
    assert await Bench(object()).prefixes.join(link, *wanted("a")) is NOT_HERE


async def test_one_connection_cannot_take_all_prefixes() -> None:
    bench = Bench()
    link, _ = bench.link()
    subscriptions = []
    for number in range(MAX_PREFIXES_PER_CONNECTION):
        subscription, command = wanted(f"{number}")
        assert await bench.prefixes.join(link, subscription, command) is None
        subscriptions.append(subscription)
    assert await bench.prefixes.join(link, *wanted("one more")) is TOO_MANY_OF_ONE
    assert await bench.prefixes.join(bench.link()[0], *wanted("one more")) is None
    bench.hub.leave(subscriptions[0].groups[0], link)
    assert await bench.prefixes.join(link, *wanted("another")) is None


async def test_number_of_prefixes_is_limited_and_existing_ones_can_be_joined() -> None:
    bench = Bench()
    for number in range(MAX_PREFIXES):
        if number % MAX_PREFIXES_PER_CONNECTION == 0:
            link, _ = bench.link()
        assert await bench.prefixes.join(link, *wanted(f"{number}")) is None
    link, _ = bench.link()
    assert await bench.prefixes.join(link, *wanted("one more")) is TOO_MANY
    assert await bench.prefixes.join(bench.link()[0], *wanted("7")) is None


async def test_possible_loss_is_reported_with_the_prefix_and_no_position() -> None:
    bench = Bench()
    link, connection = bench.link()
    await bench.prefixes.join(link, *wanted("a/"))
    bench.prefixes.missed()
    await settle()
    assert got(connection) == [Gap(b"a/", Reason.TRIMMED, b"", 0, 0)]


@pytest.mark.parametrize("times", [(1.0, 1.0), (1.0, 2.0)])
async def test_transient_messages_of_two_streams_are_separate_runs(times: tuple[float, float]) -> None:
    bench = Bench()
    link, connection = bench.link()
    await bench.prefixes.join(link, *wanted(""))
    bench.prefixes.deliver([Registered("x", b"1", times[0]), Registered("y", b"2", times[1])])
    await settle()
    runs = [body for body in got(connection) if isinstance(body, Run)]
    assert [(run.key, run.payload) for run in runs] == [(b"x", b"1"), (b"y", b"2")]
    assert link.codec.messages is MESSAGES
