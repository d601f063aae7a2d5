"""A long history is read from the store as the client takes it: no page before its turn, each message once."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from ropewalk.core.backoff import Backoff
from ropewalk.core.delivered import Delivered
from ropewalk.engine import joins
from ropewalk.engine.replay import WRITE_BYTES
from ropewalk.engine.subscription import Subscription
from ropewalk.model.errors import Unavailable
from ropewalk.model.history import MAX_ANSWER_BYTES, Gap, GapReason, HistoryRequest, Replay
from ropewalk.model.limits import Limits
from ropewalk.model.messages import Position, Publication, Registered
from ropewalk.model.rules import StreamRule
from ropewalk.model.sessions import Subscribed
from tests.unit.engine.workbench import Client, SlowReader, Workbench, public, settle

MESSAGE = '"%s"' % ("x" * 20_000)
LONG = 60
"""Messages; an answer of the store has 12 of them."""


class Store:
    """Counts the answers of a bench's store. `before` is called before each but the first one."""

    def __init__(self, bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reads = 0
        self.before: Callable[[], Awaitable[object]] | None = None
        self.inner = bench.backend.streams.replay
        monkeypatch.setattr(bench.backend.streams, "replay", self._replay)

    async def _replay(self, stream: str, position: Position) -> Replay | Gap:
        self.reads += 1
        if self.before is not None and self.reads > 1:
            await self.before()
        return await self.inner(stream, position)


async def subscribe(client: Client, stream: str = "s", epoch: str = "", offset: int = 0, command: str = "subscribe") -> None:
    positions = {stream: {"epoch": epoch, "offset": offset}}
    await client.send(command=command, identifier=public(stream), history={"streams": positions})


def numbers(client: Client) -> list[int]:
    return [item for item in client.seen() if isinstance(item, int)]


async def read_all(reader: SlowReader) -> None:
    for _ in range(3 * LONG):
        await reader.read()


async def test_next_answer_is_read_when_the_client_has_taken_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Workbench() as bench:
        await bench.publish("s", *[MESSAGE] * LONG)
        store, client = Store(bench, monkeypatch), await bench.connect()
        reader = SlowReader(client)
        await subscribe(client)
        assert store.reads == 1
        assert 0 < bench.report().history_waiting_bytes < 2 * MAX_ANSWER_BYTES
        await read_all(reader)
        assert client.seen() == ["welcome", "confirm_subscription", *range(1, LONG + 1), "confirm_history"]
        assert store.reads == 5
        assert bench.report().history_waiting_bytes == 0


async def test_short_history_is_one_read(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Workbench() as bench:
        await bench.publish("s", *['"%s"' % ("x" * 2000)] * 100)
        store, client = Store(bench, monkeypatch), await bench.connect()
        await subscribe(client)
        assert client.seen() == ["welcome", "confirm_subscription", *range(1, 101), "confirm_history"]
        assert store.reads == 1


async def test_messages_published_between_two_answers_come_once_and_after_the_confirmation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Workbench() as bench:
        await bench.publish("s", *[MESSAGE] * 30)
        store, client = Store(bench, monkeypatch), await bench.connect()
        store.before = lambda: bench.node.broker.publish([_publication("s")])
        await subscribe(client)
        await bench.publish("s", "1")
        live = range(31, 34)  # two came between three answers
        assert client.seen() == ["welcome", "confirm_subscription", *range(1, 31), "confirm_history", *live]


async def test_messages_trimmed_between_two_answers_are_a_gap_and_the_kept_ones_follow() -> None:
    async with Workbench(rules=[StreamRule("s", history_limit=40)]) as bench:
        await bench.publish("s", *[MESSAGE] * 40)
        client = await bench.connect(positions="1")
        reader = SlowReader(client)
        await subscribe(client)
        await bench.publish("s", *["1"] * 30)
        await read_all(reader)
        assert client.seen() == [
            "welcome",
            "confirm_subscription",
            *range(1, 13),
            "reject_history",
            *range(31, 41),
            "confirm_history",
            *range(41, 71),
        ]
        (gap,) = (reply for reply in client.connection.replies() if reply.get("type") == "reject_history")
        assert gap["reason"] == "trimmed"
        assert (gap["streams"]["s"]["oldest"], gap["streams"]["s"]["tip"]) == (31, 40)


async def test_gap_does_not_cover_messages_that_come_live() -> None:
    """All of the rest is trimmed, and more than that: what was published during the join is delivered."""
    async with Workbench(rules=[StreamRule("s", history_limit=40)]) as bench:
        await bench.publish("s", *[MESSAGE] * 40)
        client = await bench.connect(positions="1")
        reader = SlowReader(client)
        await subscribe(client)
        await bench.publish("s", *["1"] * 50)
        await read_all(reader)
        expected = [*range(1, 13), "reject_history", "confirm_history", *range(41, 91)]
        assert client.seen() == ["welcome", "confirm_subscription", *expected]
        (gap,) = (reply for reply in client.connection.replies() if reply.get("type") == "reject_history")
        assert (gap["streams"]["s"]["oldest"], gap["streams"]["s"]["tip"]) == (41, 40)


async def test_stream_that_begins_a_new_epoch_between_two_answers_goes_on_there(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Workbench() as bench:
        (receipt, *_) = await bench.publish("s", *[MESSAGE] * 30)
        new = tuple(Registered("s", b"1", 1.0, "new", offset) for offset in (1, 2))
        changed = Gap("s", GapReason.EPOCH_CHANGED, "new", 1, 2, rest=Replay("s", "new", 2, new))
        replay, client = bench.backend.streams.replay, await bench.connect(positions="1")

        async def answer(stream: str, position: Position) -> Replay | Gap:
            return changed if position == Position(receipt.epoch, 12) else await replay(stream, position)

        monkeypatch.setattr(bench.backend.streams, "replay", answer)
        await subscribe(client)
        expected = [*range(1, 13), "reject_history", 1, 2, "confirm_history"]
        assert client.seen() == ["welcome", "confirm_subscription", *expected]
        assert client.connection.replies()[-1]["streams"]["s"] == {"epoch": "new", "tip": 2}
        (subscription,) = client.session.subscriptions.values()
        assert subscription.delivered == (Delivered("new", 1),)


async def test_unavailable_store_is_read_again_during_a_join(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joins, "BETWEEN_ATTEMPTS", Backoff(0.0, 0.0))
    async with Workbench() as bench:
        await bench.publish("s", *[MESSAGE] * LONG)
        store, client = Store(bench, monkeypatch), await bench.connect()
        failures = [Unavailable("unavailable")] * 3

        async def fail() -> None:
            if failures:
                raise failures.pop()

        store.before = fail
        await subscribe(client)
        await settle()
        assert client.seen() == ["welcome", "confirm_subscription", *range(1, LONG + 1), "confirm_history"]


async def test_history_request_ends_where_the_store_becomes_unavailable_and_can_be_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(joins, "BETWEEN_ATTEMPTS", Backoff(0.0, 0.0))
    async with Workbench() as bench:
        receipts = await bench.publish("s", *[MESSAGE] * LONG)
        client = await bench.connect()
        await client.send(command="subscribe", identifier=public("s"))
        store = Store(bench, monkeypatch)

        async def fail() -> None:
            raise Unavailable("unavailable")

        store.before = fail
        await subscribe(client, epoch=receipts[0].epoch, command="history")
        await settle()
        assert client.seen()[2:] == [*range(1, 13), "reject_history"]
        store.before = None
        await subscribe(client, epoch=receipts[0].epoch, command="history")
        await settle()
        assert client.seen()[2:] == [*range(1, 13), "reject_history", *range(13, LONG + 1), "confirm_history"]


async def test_history_of_a_live_subscription_is_not_read_beyond_what_came_live(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Workbench() as bench:
        receipts = await bench.publish("s", *[MESSAGE] * 15)
        client = await bench.connect()
        await client.send(command="subscribe", identifier=public("s"))
        await bench.publish("s", *[MESSAGE] * 45)
        store = Store(bench, monkeypatch)
        await subscribe(client, epoch=receipts[0].epoch, command="history")
        assert client.seen()[2:] == [*range(16, 61), *range(1, 16), "confirm_history"]
        assert store.reads == 2


# --- the bound of a process ---------------------------------------------------------------------------------------------


async def test_clients_wait_for_their_history_while_others_do_not_take_theirs() -> None:
    limits = Limits(ping_interval=0, max_pending_history=600_000)
    async with Workbench(limits) as bench:
        await bench.publish("s", *[MESSAGE] * LONG)
        readers = [SlowReader(await bench.connect()) for _ in range(10)]
        for reader in readers:
            await subscribe(reader.client)
        began = [reader for reader in readers if numbers(reader.client)]
        assert len(began) == 2
        assert bench.report().history_waiting_bytes < limits.max_pending_history + MAX_ANSWER_BYTES
        other = await bench.connect()
        await other.send(command="subscribe", identifier=public("s"))
        await bench.publish("t", "1")
        assert other.seen() == ["welcome", "confirm_subscription"]
        for _ in range(10):
            for reader in readers:
                await read_all(reader)
        for reader in readers:
            assert numbers(reader.client) == list(range(1, LONG + 1))
        assert bench.report().history_waiting_bytes == 0


def _publication(stream: str) -> Publication:
    return Publication(stream, b"1")


# --- subscriptions to several streams ---------------------------------------------------------------------------------

STREAMS = tuple(f"s{number}" for number in range(20))


class ManyStreams:
    """A client with one subscription to `STREAMS`, which have `messages` each."""

    def __init__(self, bench: Workbench, client: Client) -> None:
        self.bench = bench
        self.client = client
        self.subscription = Subscription("many", Subscribed(STREAMS))

    @classmethod
    async def publish(cls, bench: Workbench, messages: int) -> "ManyStreams":
        for stream in STREAMS:
            await bench.publish(stream, *[MESSAGE] * messages)
        return cls(bench, await bench.connect(positions="1"))

    async def join(self, request: HistoryRequest) -> asyncio.Task[None]:
        joiner, link = self.bench.node.joiner, self.client.session.link
        task = asyncio.ensure_future(joiner.join(link, self.subscription, request, confirm=True))
        await settle()
        return task

    async def positions(self) -> HistoryRequest:
        tips = {stream: await self.bench.backend.streams.tip(stream) for stream in STREAMS}
        return HistoryRequest(streams={stream: Position(tip.epoch, 0) for stream, tip in tips.items()})

    def received(self) -> list[tuple[str, int]]:
        return [(reply["stream_id"], reply["offset"]) for reply in self.client.connection.replies() if "offset" in reply]


@pytest.mark.parametrize("by_time", [True, False])
async def test_history_of_many_streams_is_read_as_the_client_takes_it(monkeypatch: pytest.MonkeyPatch, by_time: bool) -> None:
    async with Workbench() as bench:
        many = await ManyStreams.publish(bench, 12)
        request = HistoryRequest(since=1.0) if by_time else await many.positions()
        reads, read = 0, bench.backend.streams.since if by_time else bench.backend.streams.replay

        async def counted(stream: str, start: Any) -> Replay | Gap:
            nonlocal reads
            reads += 1
            return await read(stream, start)

        monkeypatch.setattr(bench.backend.streams, "since" if by_time else "replay", counted)
        reader = SlowReader(many.client)
        joining = await many.join(request)
        taken = 0
        while not joining.done():
            assert reads - taken // (12 * len(MESSAGE)) <= 3
            assert bench.report().history_waiting_bytes <= 2 * MAX_ANSWER_BYTES + 2 * WRITE_BYTES
            await bench.publish(STREAMS[-1], "1")
            await reader.read()
            taken = sum(map(len, many.client.connection.written))
        live = [(STREAMS[-1], offset) for offset in range(13, many.received()[-1][1] + 1)]
        expected = [(stream, offset) for stream in STREAMS for offset in range(1, 13)]
        assert [item for item in many.received() if item in live] == live
        assert sorted(item for item in many.received() if item not in live) == sorted(expected)
        assert many.client.seen()[:2] == ["welcome", "confirm_subscription"]
        assert many.client.seen().count("confirm_history") == 1


async def test_unsent_history_of_all_streams_is_counted() -> None:
    """The streams are short: their pages are read at once, and all of them wait."""
    async with Workbench() as bench:
        many = await ManyStreams.publish(bench, 1)
        SlowReader(many.client)
        await many.join(HistoryRequest(since=1.0))
        assert bench.report().history_waiting_bytes > 13 * len(MESSAGE)


async def test_gaps_of_streams_that_are_read_later_are_reported_in_their_place() -> None:
    async with Workbench(rules=[StreamRule("s*", history_limit=12)]) as bench:
        many = await ManyStreams.publish(bench, 15)
        joining = await many.join(await many.positions())
        await joining
        gaps = [reply for reply in many.client.connection.replies() if reply.get("type") == "reject_history"]
        assert sorted(stream for gap in gaps for stream in gap["streams"]) == sorted(STREAMS)
        assert {value["oldest"] for gap in gaps for value in gap["streams"].values()} == {4}
        assert sorted(many.received()) == sorted((stream, offset) for stream in STREAMS for offset in range(4, 16))


async def test_live_subscription_to_many_streams_gets_each_missing_message_once() -> None:
    async with Workbench() as bench:
        many = await ManyStreams.publish(bench, 12)
        await (await many.join(HistoryRequest()))
        joiner, link, request = bench.node.joiner, many.client.session.link, await many.positions()
        for _ in range(2):
            await joiner.replay(link, many.subscription, request)
        assert sorted(many.received()) == sorted((stream, offset) for stream in STREAMS for offset in range(1, 13))
