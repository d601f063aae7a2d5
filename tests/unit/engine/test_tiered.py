"""Tiered history: archived and hot messages joined without overlap, or a gap."""

import re
from collections.abc import AsyncIterator, Sequence

import pytest

from ropewalk.adapters.backends.memory import MemoryBackend
from ropewalk.core.history import BEFORE_ALL
from ropewalk.core.rules import Rulebook
from ropewalk.engine.tiered import TieredBackend
from ropewalk.model.commands import Subscribe
from ropewalk.model.errors import Unavailable
from ropewalk.model.history import ColdPiece, Gap, GapReason, HistoryPage, HistoryRange, HistoryRequest, Replay
from ropewalk.model.limits import Limits
from ropewalk.model.messages import Deliverable, Position, Publication, Registered, expand_runs
from ropewalk.model.rules import StreamRules
from ropewalk.model.sessions import ConnectRequest
from ropewalk.ports import Archive
from ropewalk.protocol.sse import SseCodec
from tests.unit.engine.workbench import Clock, RecordingConnection, Workbench, public, settle

HOT = 3
LIMIT = 10


class FakeArchive:
    """Holds `messages` in order of offset. Its first `fails` reads fail.

    While a reader waits for it, `meanwhile` is published to `hot`, and one message by the node of `busy`.
    """

    def __init__(self) -> None:
        self.messages: list[Registered] = []
        self.reads = 0
        self.down = False
        self.fails = 0
        self.meanwhile: list[Publication] = []
        self.hot: MemoryBackend | None = None
        self.busy: Workbench | None = None

    async def read(self, partition_key: str, wanted: HistoryRange) -> ColdPiece:
        self.reads += 1
        if self.down or self.reads <= self.fails:
            raise Unavailable("the archive is unavailable")
        if self.hot is not None:
            await self.hot.streams.append(self.meanwhile)
        if self.busy is not None:
            await self.busy.publish("a", "meanwhile")
        found = [
            each
            for each in self.messages
            if (each.stream, each.epoch) == (wanted.stream, wanted.epoch)
            and wanted.first <= each.offset <= wanted.last
            and each.timestamp >= wanted.since
        ]
        return ColdPiece(tuple(found[: wanted.limit]), len(found) > wanted.limit)

    async def stop(self) -> None: ...

    def health(self) -> str:
        return "unavailable" if self.down else ""

    def gauges(self) -> dict[str, float]:
        return {"archive_files": 1.0}


def _checked(archive: FakeArchive) -> Archive:
    return archive


class Bench:
    """A hot backend that keeps three messages of a stream, and an archive."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.rules = Rulebook(StreamRules(history_limit=HOT, history_ttl=300.0), ())
        self.hot = MemoryBackend(self.rules, self.clock)
        self.archive = FakeArchive()
        self.backend = TieredBackend(self.hot, _checked(self.archive), LIMIT)
        self.streams = self.backend.streams

    async def publish(self, count: int, archived: bool = True) -> list[Registered]:
        """Publish one message a second."""
        published: list[Registered] = []
        deliver = self.hot.feed.publish

        def record(messages: Sequence[Deliverable]) -> None:
            published.extend(expand_runs(messages))
            deliver(messages)

        self.hot.feed.publish = record
        for _ in range(count):
            self.clock.now += 1
            await self.streams.append([Publication("a", b"1")])
        self.hot.feed.publish = deliver
        if archived:
            self.archive.messages += published
        return published


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench()
    await bench.backend.start()
    yield bench
    await bench.backend.stop()


def offsets(messages: tuple[Registered, ...]) -> list[int]:
    return [each.offset for each in messages]


async def test_hot_history_does_not_read_the_archive(bench: Bench) -> None:
    published = await bench.publish(5)

    assert await bench.streams.replay("a", Position(published[0].epoch, 2)) == Replay(
        "a", published[0].epoch, 5, tuple(published[2:])
    )
    assert await bench.streams.replay("unknown", BEFORE_ALL) == Replay("unknown", "", 0)
    assert bench.archive.reads == 0


async def test_archived_and_hot_messages_are_joined(bench: Bench) -> None:
    published = await bench.publish(9)

    assert await bench.streams.replay("a", BEFORE_ALL) == Replay("a", published[0].epoch, 9, tuple(published))
    assert await bench.streams.replay("a", Position(published[0].epoch, 4)) == Replay(
        "a", published[0].epoch, 9, tuple(published[4:])
    )


async def test_another_epoch_does_not_read_the_archive(bench: Bench) -> None:
    await bench.publish(9)

    answer = await bench.streams.replay("a", Position("former", 4))

    assert isinstance(answer, Gap)
    assert answer.reason == GapReason.EPOCH_CHANGED
    assert bench.archive.reads == 0


async def test_long_replay_is_cut_and_can_be_continued(bench: Bench) -> None:
    published = await bench.publish(25)
    epoch = published[0].epoch

    first = await bench.streams.replay("a", BEFORE_ALL)
    second = await bench.streams.replay("a", Position(epoch, 10))
    third = await bench.streams.replay("a", Position(epoch, 20))

    assert first == Gap("a", GapReason.PARTIAL, epoch, 11, 25, tuple(published[:10]))
    assert second == Gap("a", GapReason.PARTIAL, epoch, 21, 25, tuple(published[10:20]))
    assert third == Replay("a", epoch, 25, tuple(published[20:]))


async def test_hole_in_the_archive_is_a_gap_with_the_next_offset(bench: Bench) -> None:
    published = await bench.publish(12)
    epoch = published[0].epoch
    del bench.archive.messages[4:6]

    rest = Replay("a", epoch, 12, tuple(published[6:]))
    assert await bench.streams.replay("a", BEFORE_ALL) == Gap("a", GapReason.TRIMMED, epoch, 7, 12, tuple(published[:4]), rest)
    assert await bench.streams.replay("a", Position(epoch, 6)) == Replay("a", epoch, 12, tuple(published[6:]))


async def test_each_hole_in_the_archive_is_a_gap(bench: Bench) -> None:
    published = await bench.publish(12)
    epoch = published[0].epoch
    for hole in (9, 8, 7, 5, 0):  # down to the hot history, in the middle, at the beginning
        del bench.archive.messages[hole]

    answer = await bench.streams.replay("a", BEFORE_ALL)

    hot = Replay("a", epoch, 12, tuple(published[9:]))
    third = Gap("a", GapReason.TRIMMED, epoch, 10, 12, (published[6],), hot)
    second = Gap("a", GapReason.TRIMMED, epoch, 7, 12, tuple(published[1:5]), third)
    assert answer == Gap("a", GapReason.TRIMMED, epoch, 2, 12, (), second)


async def test_hole_in_a_limited_replay_is_followed_by_the_rest_up_to_the_limit(bench: Bench) -> None:
    published = await bench.publish(25)
    epoch = published[0].epoch
    del bench.archive.messages[4]

    answer = await bench.streams.replay("a", BEFORE_ALL)

    rest = Gap("a", GapReason.PARTIAL, epoch, 12, 25, tuple(published[5:11]))
    assert answer == Gap("a", GapReason.TRIMMED, epoch, 6, 25, tuple(published[:4]), rest)


async def test_messages_neither_archived_nor_hot_are_a_gap(bench: Bench) -> None:
    published = await bench.publish(4)
    later = await bench.publish(5, archived=False)

    answer = await bench.streams.replay("a", BEFORE_ALL)

    rest = Replay("a", published[0].epoch, 9, tuple(later[2:]))
    assert answer == Gap("a", GapReason.TRIMMED, published[0].epoch, 7, 9, tuple(published), rest)


async def test_unavailable_archive_leaves_the_gap_of_the_hot_history(bench: Bench) -> None:
    published = await bench.publish(9)
    bench.archive.down = True

    gap = Gap("a", GapReason.TRIMMED, published[0].epoch, 7, 9, rest=Replay("a", published[0].epoch, 9, tuple(published[6:])))
    assert await bench.streams.replay("a", BEFORE_ALL) == gap
    assert await bench.streams.since("a", 0.0) == gap
    assert bench.backend.health() == ""


async def test_messages_published_during_an_archive_read_are_left_to_live_delivery(bench: Bench) -> None:
    published = await bench.publish(9)
    bench.archive.hot = bench.hot
    bench.archive.meanwhile = [Publication("a", b"2")] * 10  # more than the hot history keeps

    answer = await bench.streams.replay("a", BEFORE_ALL)

    assert answer == Replay("a", published[0].epoch, 9, tuple(published))


async def test_since_reads_the_archive(bench: Bench) -> None:
    published = await bench.publish(9)

    assert await bench.streams.since("a", published[3].timestamp) == Replay("a", published[0].epoch, 9, tuple(published[3:]))
    assert await bench.streams.since("a", 0.0) == Replay("a", published[0].epoch, 9, tuple(published))


async def test_since_reads_the_archive_only_if_the_hot_history_may_be_incomplete(bench: Bench) -> None:
    published = await bench.publish(9)
    await bench.streams.since("a", published[7].timestamp)
    await bench.streams.since("unknown", 0.0)
    assert bench.archive.reads == 0

    bench.clock.now += 400  # the hot history is empty because of its age, not its size
    assert (await bench.streams.since("a", bench.clock.now - 299)).messages == ()
    assert bench.archive.reads == 0
    assert offsets((await bench.streams.since("a", published[5].timestamp)).messages) == [6, 7, 8, 9]


async def test_since_reports_messages_missing_in_the_archive(bench: Bench) -> None:
    published = await bench.publish(9)
    epoch = published[0].epoch
    del bench.archive.messages[:2]

    whole = await bench.streams.since("a", published[3].timestamp)
    cut = await bench.streams.since("a", published[1].timestamp)

    assert whole == Replay("a", epoch, 9, tuple(published[3:]))
    assert cut == Gap("a", GapReason.TRIMMED, epoch, 3, 9, rest=Replay("a", epoch, 9, tuple(published[2:])))


async def test_since_is_a_gap_if_one_of_two_archive_reads_fails(bench: Bench) -> None:
    """One file may be unreadable while the file just before the hot history is readable."""
    published = await bench.publish(9)
    bench.archive.fails = 1

    answer = await bench.streams.since("a", published[1].timestamp)

    assert answer == Gap(
        "a", GapReason.TRIMMED, published[0].epoch, 7, 9, rest=Replay("a", published[0].epoch, 9, tuple(published[6:]))
    )


async def test_since_is_cut_like_a_replay(bench: Bench) -> None:
    published = await bench.publish(25)

    answer = await bench.streams.since("a", published[2].timestamp)

    assert answer == Gap("a", GapReason.PARTIAL, published[0].epoch, 13, 25, tuple(published[2:12]))


async def test_pages_span_cold_and_hot_history(bench: Bench) -> None:
    published = await bench.publish(9)
    epoch = published[0].epoch

    assert await bench.streams.page("a", 0, 4) == HistoryPage("a", epoch, 9, 1, tuple(published[:4]), 4)
    assert await bench.streams.page("a", 4, 4) == HistoryPage("a", epoch, 9, 1, tuple(published[4:8]), 8)
    assert await bench.streams.page("a", 8, 4) == HistoryPage("a", epoch, 9, 7, tuple(published[8:]))
    assert await bench.streams.page("unknown", 0, 4) is None


async def test_page_ends_at_a_hole_and_the_next_one_starts_after_it(bench: Bench) -> None:
    published = await bench.publish(9)
    epoch = published[0].epoch
    del bench.archive.messages[2:4]

    assert await bench.streams.page("a", 0, 100) == HistoryPage("a", epoch, 9, 1, tuple(published[:2]), 2)
    assert await bench.streams.page("a", 2, 100) == HistoryPage("a", epoch, 9, 5, tuple(published[4:]))


async def test_page_without_its_start_has_the_first_readable_offset_as_oldest(bench: Bench) -> None:
    """An archive read may fail for one range and succeed for another a moment later."""
    published = await bench.publish(9)
    bench.archive.fails = 1

    assert await bench.streams.page("a", 2, 100) == HistoryPage("a", published[0].epoch, 9, 7, tuple(published[6:]))


async def test_page_above_the_limit_is_cut_and_can_be_continued(bench: Bench) -> None:
    await bench.publish(25)

    page = await bench.streams.page("a", 0, 100)

    assert page is not None
    assert (offsets(page.messages), page.next_offset) == (list(range(1, 11)), 10)


async def test_client_receives_cold_then_hot_then_live_messages(bench: Bench) -> None:
    async with Workbench(Limits(ping_interval=0, archive_replay=LIMIT), backend=bench.backend) as workbench:
        await bench.publish(9)
        bench.archive.hot = bench.hot
        client = await workbench.connect()
        await client.send(command="subscribe", identifier=public("a"), history={"streams": {"a": {"epoch": "", "offset": 0}}})
        await workbench.publish("a", "10")
        await settle()

        assert client.seen() == ["welcome", "confirm_subscription", *range(1, 10), "confirm_history", 10]


async def test_client_pages_through_a_long_history_and_receives_live_messages_once(bench: Bench) -> None:
    async with Workbench(Limits(ping_interval=0, archive_replay=LIMIT), backend=bench.backend) as workbench:
        published = await bench.publish(25)
        client = await workbench.connect()
        ask = {"identifier": public("a")}
        places = [{"epoch": "", "offset": 0}, *({"epoch": published[0].epoch, "offset": offset} for offset in (10, 20))]
        await client.send(command="subscribe", **ask, history={"streams": {"a": places[0]}})
        await workbench.publish("a", "26")
        await client.send(command="history", **ask, history={"streams": {"a": places[1]}})
        await client.send(command="history", **ask, history={"streams": {"a": places[2]}})
        await workbench.publish("a", "27")

        assert client.seen() == [
            *("welcome", "confirm_subscription", *range(1, 11), "reject_history"),
            26,
            *(*range(11, 21), "reject_history"),
            *(*range(21, 26), "confirm_history"),
            27,
        ]


async def test_client_that_cannot_request_pages_receives_all_of_them_before_live(bench: Bench) -> None:
    async with Workbench(Limits(ping_interval=0, archive_replay=LIMIT), backend=bench.backend) as workbench:
        await bench.publish(25)
        connection = RecordingConnection()
        session = workbench.node.open(ConnectRequest("", "", {}, {}), connection, SseCodec(unwrap=True, raw=True))
        assert await session.wait_opened()
        bench.archive.busy = workbench
        assert await session.submit(Subscribe(public("a"), HistoryRequest(None, {"a": BEFORE_ALL})))
        bench.archive.busy = None
        await workbench.publish("a", "live")

        ids = re.findall(rb"^data: .*\nid: (\d+)/", b"".join(connection.written), re.M)
        assert [int(offset) for offset in ids] == list(range(1, len(ids) + 1))
        assert len(ids) == 25 + bench.archive.reads + 1
        assert b"".join(connection.written).endswith(b"id: %d/%b/a\n\n" % (len(ids), bench.archive.messages[0].epoch.encode()))


async def test_limited_replay_that_reaches_live_completes_the_history(bench: Bench) -> None:
    async with Workbench(Limits(ping_interval=0, archive_replay=LIMIT), backend=bench.backend) as workbench:
        published = await bench.publish(14)
        client = await workbench.connect()
        ask = {"identifier": public("a")}
        await client.send(command="subscribe", **ask, history={"streams": {"a": {"epoch": "", "offset": 0}}})
        await bench.publish(30)  # the rest of the history now exceeds one reply
        await client.send(command="history", **ask, history={"streams": {"a": {"epoch": published[0].epoch, "offset": 10}}})
        rest = client.seen()[13:]

        assert client.seen()[2:13] == [*range(1, 11), "reject_history"]
        assert [seen for seen in rest if seen in (*range(15), "confirm_history")] == [11, 12, 13, 14, "confirm_history"]
