"""Conformance of `ports.Feed`: it delivers registered messages and disconnect requests to the processes that listen.

A feed need not be exact. So the suite waits until a message arrives, and checks order and completeness only for feeds that
promise them.
"""

import asyncio
import time
from collections.abc import Callable, Sequence

import msgspec

from ropewalk.model.messages import (
    LAST_KSUID,
    Deliverable,
    MessageFields,
    Position,
    Publication,
    Registered,
    RemoteDisconnect,
    TransientRun,
)
from ropewalk.model.presence import Member
from ropewalk.model.sessions import EndRequest
from ropewalk.ports import Backend
from ropewalk.testing.backend_rig import BackendRig, at, offsets, publish

WAIT_SECONDS = 60.0
POLL_SECONDS = 0.005

FRAME = b"a frame of two messages"
SPLIT = (b'"one of two"', b'"two of two"')


def _split(run: TransientRun) -> list[Registered]:
    return [Registered(run.stream, payload, run.timestamp) for payload in SPLIT]


class Process:
    """One process that listens: the messages and requests it received."""

    def __init__(self, on_message: Callable[[Registered], None] = lambda message: None) -> None:
        self.messages: list[Registered] = []
        self.runs: list[TransientRun] = []
        self.orders: list[EndRequest] = []
        self._on_message = on_message

    async def start(self, backend: Backend) -> "Process":
        await backend.feed.start(self._deliver, self._obey)
        return self

    def _deliver(self, messages: Sequence[Deliverable]) -> None:
        for message in messages:
            if isinstance(message, TransientRun):
                self.runs.append(message)
            else:
                self.messages.append(message)
                self._on_message(message)

    async def _obey(self, order: EndRequest) -> int:
        self.orders.append(order)
        return 1


async def until(holds: Callable[[], bool], what: str = "a registered message") -> None:
    """Wait until the condition holds. The limit only matters for a feed that loses messages."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not holds():
        assert time.monotonic() < deadline, f"{what} did not arrive through the feed in {WAIT_SECONDS:g} seconds"
        await asyncio.sleep(POLL_SECONDS)


class FeedConformance(BackendRig):
    async def test_message_arrives_with_its_position_and_fields(self) -> None:
        async with self.running() as backend:
            here = await Process().start(backend)
            await backend.feed.listen("a")
            batch = [Publication("a", b"1", "sid", "kind", uid=LAST_KSUID, ts_producer=7), Publication("a", b"2")]
            receipts = await backend.streams.append(batch)
            await until(lambda: len(here.messages) >= 2)
            assert sorted(map(at, here.messages), key=lambda position: position.offset) == [at(item) for item in receipts]
            first = next(message for message in here.messages if message.offset == 1)
            assert (first.payload, first.exclude_socket, first.broadcast_type) == (b"1", "sid", "kind")
            assert [message.fields for message in sorted(here.messages, key=lambda each: each.offset)] == [
                MessageFields(LAST_KSUID, 7),
                None,
            ]
            assert first.timestamp == self.clock.now

    async def test_message_can_be_read_when_it_arrives(self) -> None:
        async with self.running() as backend:
            reads: list[asyncio.Future[Position]] = []

            def read(message: Registered) -> None:
                reads.append(asyncio.ensure_future(backend.streams.tip("a")))

            here = await Process(read).start(backend)
            await backend.feed.listen("a")
            for _ in range(20):
                await backend.streams.append([Publication("a", b"1")])
            await until(lambda: len(here.messages) >= 20)
            tips = [tip.offset for tip in await asyncio.gather(*reads)]
            assert all(tip >= offset for tip, offset in zip(tips, offsets(here.messages), strict=True))

    async def test_duplicate_is_not_delivered_again(self) -> None:
        async with self.running() as backend:
            here = await Process().start(backend)
            await backend.feed.listen("a")
            for _ in range(2):
                await backend.streams.append([Publication("a", b"1", uid="u")])
            await publish(backend, "a")
            await until(lambda: 2 in offsets(here.messages))
            assert {message.offset for message in here.messages} == {1, 2}

    async def test_transient_messages_have_no_position_and_are_not_stored(self) -> None:
        async with self.running() as backend:
            here = await Process().start(backend)
            await backend.feed.listen("a")
            backend.feed.publish([Registered("a", b"1", self.clock.now)])
            mixed = [Publication("a", b"2"), Publication("a", b"3", transient=True), Publication("a", b"4")]
            receipts = await backend.streams.append(mixed)
            assert [receipt.offset for receipt in receipts] == [1, 0, 2]
            await until(lambda: len(here.messages) >= 4)
            assert {message.payload: message.offset for message in here.messages} == {b"1": 0, b"2": 1, b"3": 0, b"4": 2}
            if backend.feed.exact:
                assert [message.payload for message in here.messages] == [b"1", b"2", b"3", b"4"]
            assert (await backend.streams.tip("a")).offset == 2

    async def test_run_arrives_as_one_frame_or_as_its_messages(self) -> None:
        async with self.running() as backend:
            here = await Process().start(backend)
            await backend.feed.listen("a")
            backend.feed.publish([Registered("a", b"1", self.clock.now)])
            run, other = (TransientRun(stream, FRAME, 2, self.clock.now, _split) for stream in ("a", "b"))
            if (waits := backend.feed.publish_runs([other, run])) is not None:
                await waits
            backend.feed.publish([Registered("a", b"2", self.clock.now)])

            def came() -> list[bytes]:
                runs = [b"%d %b" % (each.count, each.frame) for each in here.runs if each.stream == "a"]
                return runs + [message.payload for message in here.messages if message.stream == "a"]

            whole, apart = sorted([b"1", b"2", b"2 %b" % FRAME]), sorted([b"1", b"2", *SPLIT])
            await until(lambda: sorted(came()) in (whole, apart))

    async def test_presence_changes_arrive_as_transient_messages(self) -> None:
        async with self.running() as backend:
            here = await Process().start(backend)
            await backend.feed.listen("a")
            await backend.presence.join("a", "sid", Member("bo", b'{"name":"Bo"}'))
            await until(lambda: len(here.messages) >= 1, "a join")
            await backend.presence.leave("a", "sid")
            await until(lambda: len(here.messages) >= 2, "a leave")
            await backend.presence.join("a", "sid", Member("cy"))
            await backend.presence.detach("sid", 15)
            await self.advance(15)
            await backend.presence.expire()
            await until(lambda: len(here.messages) >= 4, "the leave of an expired member")
            assert [(message.offset, message.broadcast_type) for message in here.messages] == [(0, "presence")] * 4
            assert [msgspec.json.decode(message.payload) for message in here.messages] == [
                {"type": "join", "id": "bo", "info": {"name": "Bo"}},
                {"type": "leave", "id": "bo"},
                {"type": "join", "id": "cy"},
                {"type": "leave", "id": "cy"},
            ]

    async def test_exact_feed_delivers_once_in_order_before_the_receipts(self) -> None:
        async with self.running() as backend:
            if not backend.feed.exact:
                return
            here = await Process().start(backend)
            for count in (3, 1, 2):
                receipts = await publish(backend, "a", count)
                assert here.messages[-1].offset == receipts[-1].offset
            assert offsets(here.messages) == [1, 2, 3, 4, 5, 6]

    async def test_disconnect_request_is_executed_and_counted(self) -> None:
        async with self.running() as backend:
            here = await Process().start(backend)
            order = RemoteDisconnect("user 1", reconnect=False)
            assert await backend.feed.disconnect(order) == 1
            assert here.orders == [order]

    async def test_stopped_feed_delivers_nothing(self) -> None:
        async with self.running() as backend:
            here = await Process().start(backend)
            await backend.feed.listen("a")
            await publish(backend, "a")
            await until(lambda: len(here.messages) == 1)
            backend.feed.unlisten("a")
            await backend.feed.stop()
            await publish(backend, "a")
            assert offsets(here.messages) == [1]
            assert backend.feed.health() == ""
