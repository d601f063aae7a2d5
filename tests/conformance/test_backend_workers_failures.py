"""Workers and their store when one of them stops, hangs or sends malformed frames; over a real bus in this process."""

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ropewalk.adapters.backends.memory.calls import CallKind
from ropewalk.adapters.backends.memory.store import StoreOptions
from ropewalk.adapters.backends.workers import backpressure, link, server, wire
from ropewalk.adapters.backends.workers.backend import WorkerBackend
from ropewalk.adapters.backends.workers.server import StoreServer
from ropewalk.adapters.backends.workers.store import SharedStore
from ropewalk.core.rules import Rulebook
from ropewalk.model.errors import Unanswered, Unavailable
from ropewalk.model.history import Gap, Replay, split_at_gaps
from ropewalk.model.journal import Row
from ropewalk.model.messages import Position, Publication, RemoteDisconnect
from ropewalk.model.presence import Member
from ropewalk.model.rules import StreamRules
from ropewalk.model.sessions import SessionSnapshot, SessionWrite
from tests.conformance.feed_recorder import FeedRecorder
from tests.waiting import until

WAIT_SECONDS = 60.0
SNAPSHOT = SessionSnapshot("bo", {})


class SilentJournal:
    """Its writes never end."""

    instant = False

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def write(self, rows: Sequence[Row]) -> None:
        self.asked.set()
        await asyncio.Event().wait()

    def write_nowait(self, rows: Sequence[Row]) -> None: ...

    def health(self) -> str:
        return ""

    def gauges(self) -> dict[str, float]:
        return {}


class StoreProcess:
    """A store that can stop and start again without data, at the same path."""

    def __init__(self, path: Path) -> None:
        self.path = str(path / "bus.sock")
        self._began = 0

    async def start(self, journal: SilentJournal | None = None) -> None:
        self._began += 1000
        self.server = StoreServer(journal)
        rules = Rulebook(StreamRules(history_limit=1000, history_ttl=300.0))
        self.store = SharedStore(rules, time.time, self.server, StoreOptions(journal=journal), self._began)
        self.server.attach(self.store)
        Path(self.path).unlink(missing_ok=True)
        await self.server.start(self.path)


@pytest.fixture
async def process(tmp_path: Path) -> AsyncIterator[StoreProcess]:
    process = StoreProcess(tmp_path)
    await process.start()
    yield process
    await process.server.stop()


@asynccontextmanager
async def worker(process: StoreProcess, name: str, patience: float = 3.0) -> AsyncIterator[tuple[WorkerBackend, FeedRecorder]]:
    backend, heard = WorkerBackend(process.path, name, patience), FeedRecorder(ended=1)
    await backend.feed.start(heard.deliver, heard.obey, heard.miss)
    await backend.start()
    try:
        yield backend, heard
    finally:
        await backend.stop()


async def publish(backend: WorkerBackend, *payloads: bytes, stream: str = "a") -> None:
    await backend.streams.append([Publication(stream, payload) for payload in payloads])


async def test_message_reaches_only_the_workers_that_listen(process: StoreProcess) -> None:
    async with (
        worker(process, "one") as (one, _),
        worker(process, "two") as (two, heard),
        worker(process, "three") as (_, deaf),
    ):
        await two.feed.listen("a")
        await publish(one, b"1", b"2")
        await one.streams.append([Publication("b", b"x"), Publication("a", b"3")])
        await until(lambda: len(heard.messages) == 3)
        assert heard.payloads == [b"1", b"2", b"3"]
        assert [message.offset for message in heard.messages] == [1, 2, 3]
        assert not deaf.messages


async def test_worker_that_stopped_listening_receives_nothing(process: StoreProcess) -> None:
    async with worker(process, "one") as (one, heard):
        await one.feed.listen("a")
        await publish(one, b"1")
        await until(lambda: heard.messages)
        one.feed.unlisten("a")
        await publish(one, b"2")
        await one.feed.listen("a")
        await publish(one, b"3")
        await until(lambda: len(heard.messages) == 2)
        assert heard.payloads == [b"1", b"3"]
        one.feed.unlisten("a")
        await one.streams.tip("a")
        assert not process.server.listeners


async def test_worker_reconnects_to_a_restarted_store_and_reports_missed_messages(
    process: StoreProcess,
) -> None:
    async with worker(process, "one") as (one, heard):
        await one.feed.listen("a")
        lease = (await one.sessions.renew(60.0, ())).lease
        await publish(one, b"1")
        await process.server.stop()
        await until(lambda: not one.link.connected)
        assert one.health()
        publishing = asyncio.ensure_future(publish(one, b"2"))  # waits for the store
        await process.start()
        await publishing
        await until(lambda: b"2" in heard.payloads)
        assert heard.missed == 1
        assert one.health() == ""
        assert (await one.sessions.renew(60.0, ())).lease != lease
        answer = await one.streams.replay("a", Position("", 0))
        assert isinstance(answer, Replay)
        assert [message.payload for message in answer.messages] == [b"2"]


async def test_stopped_store_is_unavailable_and_changes_nothing(process: StoreProcess) -> None:
    async with worker(process, "one", patience=0.05) as (one, _):
        await process.server.stop()
        await until(lambda: not one.link.connected)
        with pytest.raises(Unavailable) as refused:
            await publish(one, b"1")
        assert not isinstance(refused.value, Unanswered)
        await process.start()
        await until(lambda: one.link.connected)
        assert (await one.streams.tip("a")).offset == 0


async def test_call_pending_when_the_store_stops_is_unanswered(process: StoreProcess) -> None:
    await process.server.stop()
    journal = SilentJournal()
    await process.start(journal)
    async with worker(process, "one") as (one, _):
        publishing = asyncio.ensure_future(publish(one, b"1"))
        await journal.asked.wait()
        await process.server.stop()
        with pytest.raises(Unanswered):
            await publishing
        await process.start()


async def test_call_times_out_and_later_calls_succeed(process: StoreProcess) -> None:
    await process.server.stop()
    journal = SilentJournal()
    await process.start(journal)
    backend = WorkerBackend(process.path, "one", answer_seconds=0.01)
    await backend.start()
    try:
        with pytest.raises(Unanswered):
            await publish(backend, b"1")
        backend.link._answer_seconds = WAIT_SECONDS
        assert (await backend.streams.tip("a")).offset == 0
    finally:
        await backend.stop()


async def test_sessions_and_members_of_a_dead_worker_are_available_at_once(process: StoreProcess) -> None:
    async with worker(process, "two") as (two, _):
        async with worker(process, "one") as (one, _):
            await one.sessions.renew(60.0, ())
            await one.sessions.write([SessionWrite("sid", SNAPSHOT, 1, 60.0, began=time.time())])
            await one.presence.join("a", "sid", Member("bo"))
        await until(lambda: len(process.server.names) == 1)
        assert await two.sessions.take("sid", "next") == SNAPSHOT
        assert await two.presence.adopt("sid", "next") == {"a": Member("bo")}


async def test_disconnect_request_is_executed_by_all_workers_and_counted(process: StoreProcess) -> None:
    async with worker(process, "one") as (one, mine), worker(process, "two") as (_, theirs):
        assert await one.feed.disconnect(RemoteDisconnect("bo")) == 2
        assert mine.orders == theirs.orders == [RemoteDisconnect("bo")]


async def test_disconnect_request_skips_workers_that_start_or_stop(
    process: StoreProcess, caplog: pytest.LogCaptureFixture
) -> None:
    starting = WorkerBackend(process.path, "two")
    await starting.start()
    try:
        async with worker(process, "one") as (one, heard), worker(process, "three") as (stopped, _):
            await stopped.feed.stop()
            assert len(process.server.names) == 3
            assert await one.feed.disconnect(RemoteDisconnect("bo")) == 1
            assert heard.orders == [RemoteDisconnect("bo")]
    finally:
        await starting.stop()
    assert caplog.records == []


async def test_unanswered_request_to_a_worker_is_dropped(process: StoreProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "DISCONNECT_SECONDS", 1.0)  # long enough for the worker that answers
    _, writer = await asyncio.open_unix_connection(process.path)
    writer.write(wire.frame(wire.CALL, 1, "hello", ("mute",)))
    await until(lambda: len(process.server.names) == 1)
    async with worker(process, "one") as (one, heard):
        assert await one.feed.disconnect(RemoteDisconnect("bo")) == 1
        assert len(heard.orders) == 1
        assert [each.asked for each in process.server._workers.values()] == [{}, {}]
    writer.close()


async def test_disconnect_request_reaches_a_worker_after_it_reconnects(process: StoreProcess) -> None:
    async with worker(process, "one") as (one, _), worker(process, "two") as (two, heard):
        assert two.link._connection is not None
        two.link._connection.close()
        await until(lambda: len(process.server.names) == 1)
        await one.feed.disconnect(RemoteDisconnect("bo"))
        await until(lambda: heard.orders)
        assert heard.orders == [RemoteDisconnect("bo")]


async def test_reads_of_history_wait_until_the_worker_has_read_the_answers_before_them(
    process: StoreProcess, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With the limits of the bus divided by a thousand. Everything else goes between them."""
    monkeypatch.setattr(wire, "HIGH_WATER_BYTES", 1000)
    monkeypatch.setattr(wire, "LOW_WATER_BYTES", 250)
    monkeypatch.setattr(wire, "MAX_BUFFERED_BYTES", 150_000)
    async with worker(process, "one") as (one, heard):
        await one.feed.listen("b")
        for start in range(0, 300, 50):
            await publish(one, *[b"%d" % number * 100 for number in range(start, start + 50)])
        asking = [asyncio.ensure_future(one.streams.replay("a", Position("", 0))) for _ in range(20)]
        asking.append(asyncio.ensure_future(one.streams.since("a", 0.0)))
        page = asyncio.ensure_future(one.streams.page("a", 0, 1000))
        await publish(one, b"meanwhile", stream="b")
        for answer in await asyncio.gather(*asking):
            last = split_at_gaps(answer)[-1]
            assert (last.tip, [message.offset for message in last.messages]) == (300, list(range(1, 301)))
            assert last.messages[299].payload == b"299" * 100
        found = await page
        assert found is not None
        assert [message.offset for message in found.messages] == list(range(1, 301))
        assert heard.payloads == [b"meanwhile"]
        assert heard.missed == 0
    assert caplog.records == []


async def test_reads_that_are_not_answered_at_once_are_few_at_a_time(
    process: StoreProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those that reach into an archive are."""
    monkeypatch.setattr(backpressure, "MAX_UNDER_WAY", 2)
    may_answer = asyncio.Semaphore(0)
    started = 0

    async def replay(stream: str, position: Position) -> Replay | Gap:
        nonlocal started
        started += 1
        await may_answer.acquire()
        return Replay(stream, "now", position.offset)

    monkeypatch.setattr(process.server.streams, "replay", replay)
    monkeypatch.setattr(process.server, "_at_once", {CallKind.NOW})
    async with worker(process, "one") as (one, _):
        asking = [asyncio.ensure_future(one.streams.replay("a", Position("now", number))) for number in range(6)]
        await until(lambda: started == 2)
        await one.streams.tip("a")  # nothing more begins while it is answered
        assert started == 2
        for _ in asking:
            may_answer.release()
        assert [answer.tip for answer in await asyncio.gather(*asking)] == list(range(6))


async def test_worker_that_does_not_read_is_disconnected_alone(process: StoreProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MAX_BUFFERED_BYTES", 100_000)
    _, writer = await asyncio.open_unix_connection(process.path, limit=1)
    writer.write(wire.frame(wire.CALL, 1, "hello", ("mute",)) + wire.frame(wire.CALL, 2, "listen", (["a"],)))
    await until(lambda: len(process.server.names) == 1 and process.server.listeners)
    async with worker(process, "one") as (one, heard):
        await one.feed.listen("a")
        for number in range(100):
            await publish(one, b"x" * 50_000)
            await until(lambda number=number: len(heard.messages) == number + 1)  # type: ignore[misc]
        await until(lambda: len(process.server.names) == 1)
    writer.close()


async def test_publishers_wait_for_a_slow_worker_but_not_for_a_stalled_one(
    process: StoreProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = 0
    answers = process.server._held_answers
    hold = answers._hold

    def count(*arguments: object) -> None:
        nonlocal held
        held += 1
        hold(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(answers, "_hold", count)
    reader, writer = await asyncio.open_unix_connection(process.path, limit=1024)
    writer.write(wire.frame(wire.CALL, 1, "hello", ("slow",)) + wire.frame(wire.CALL, 2, "listen", (["a"],)))
    await until(lambda: process.server.listeners)
    async with worker(process, "one") as (one, _):
        publishing = asyncio.ensure_future(publish(one, *[b"x" * 100_000] * 20))
        await until(lambda: held == 1)
        assert not publishing.done()
        read = 0
        while not publishing.done():  # the publisher gets its response when the worker reads
            read += len(await reader.read(100_000))
        assert read > 500_000
        await publish(one, *[b"x" * 100_000] * 40)  # the worker stalls: the response comes after a limit
        assert held == 2
        await publish(one, b"y")  # later publishers do not wait
        assert held == 2
    writer.close()


async def test_overloaded_store_rejects_calls_and_keeps_its_workers(
    process: StoreProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "MAX_UNSENT_BYTES", 100_000)
    async with worker(process, "one") as (one, _):
        before = one.link._connection
        answers = await asyncio.gather(*(publish(one, b"x" * 60_000) for _ in range(50)), return_exceptions=True)
        refused = [answer for answer in answers if isinstance(answer, Unavailable)]
        assert refused
        assert (await one.streams.tip("a")).offset == 50 - len(refused)
        assert one.link._connection is before


@pytest.mark.parametrize(
    "sent",
    [
        b"\xff\xff\xff\xff",
        b"\x03\x00\x00\x00abc",
        wire.frame(wire.CALL, 1, "append", ([],)),
        wire.frame(wire.CALL, 1, "nonsense", ()),
        wire.frame(wire.NOTE, 0, "unlisten", (1, 2)),
    ],
    ids=["too long", "no array", "no name yet", "unknown", "wrong arguments"],
)
async def test_malformed_frame_disconnects_only_its_sender(process: StoreProcess, sent: bytes) -> None:
    async with worker(process, "one") as (one, heard):
        await one.feed.listen("a")
        reader, writer = await asyncio.open_unix_connection(process.path)
        writer.write(sent)
        assert await reader.read() == b""
        writer.close()
        await publish(one, b"1")
        await until(lambda: heard.messages)


async def test_large_message_arrives_complete(process: StoreProcess) -> None:
    async with worker(process, "one") as (one, heard):
        await one.feed.listen("a")
        await publish(one, b"x" * 5_000_000, b"y")
        await until(lambda: len(heard.messages) == 2)
        assert [len(payload) for payload in heard.payloads] == [5_000_000, 1]


async def test_frame_may_arrive_byte_by_byte(process: StoreProcess) -> None:
    reader, writer = await asyncio.open_unix_connection(process.path)
    sent = wire.frame(wire.CALL, 7, "hello", ("slow",)) + wire.frame(wire.CALL, 8, "tip", ("a",))
    for index in range(len(sent)):
        writer.write(sent[index : index + 1])
        await writer.drain()
        await asyncio.sleep(0)
    length = int.from_bytes(await reader.readexactly(4), "little")
    await reader.readexactly(length)
    length = int.from_bytes(await reader.readexactly(4), "little")
    assert await reader.readexactly(length) == wire.frame(wire.ANSWER, 8, "", Position("", 0))[4:]
    writer.close()


class NoTransport(asyncio.Transport):
    """Receives nothing from anywhere, and sends nothing."""

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def write(self, data: bytes | bytearray | memoryview) -> None: ...

    def abort(self) -> None: ...


async def test_call_that_was_not_begun_when_the_store_stops_leaves_nothing_behind(process: StoreProcess) -> None:
    """That it was never awaited would be a warning, and so an error here."""
    connection = process.server.accept()
    connection.connection_made(NoTransport())
    connection.data_received(wire.frame(wire.CALL, 1, "hello", ("one",)) + wire.frame(wire.CALL, 2, "take", ("sid", "")))
    await process.server.stop()
    gc.collect()
