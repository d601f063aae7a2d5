"""Tiered history: cold below hot, joined exactly, or a gap that says where."""

import re
from collections.abc import AsyncIterator, Sequence

import pytest

from ropewalk.adapters.backends.memory import MemoryBackend
from ropewalk.core.history import BEFORE_ALL
from ropewalk.core.rules import Rulebook
from ropewalk.engine.tiered import TieredBackend
from ropewalk.model.commands import Subscribe
from ropewalk.model.errors import Unavailable
from ropewalk.model.history import ColdPiece, Gap, GapReason, HistoryPage, HistoryRequest, Replay
from ropewalk.model.messages import Deliverable, Position, Publication, Registered, one_by_one
from ropewalk.model.rules import StreamRules
from ropewalk.model.sessions import ConnectRequest
from ropewalk.ports import Archive
from ropewalk.protocol.sse import SseCodec
from tests.unit.engine.workbench import Clock, RecordingConnection, Workbench, public, settle

HOT = 3
LIMIT = 10


class FakeArchive:
    """Everything it was told of, in order of offset. Its first `fails` reads fail.

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

    async def read(
        self, stream: str, partition_key: str, epoch: str, first: int, last: int, limit: int, since: float = 0.0
    ) -> ColdPiece:
        self.reads += 1
        if self.down or self.reads <= self.fails:
            raise Unavailable("the archive is on strike")
        if self.hot is not None:
            await self.hot.streams.append(self.meanwhile)
        if self.busy is not None:
            await self.busy.publish("a", "meanwhile")
        found = [
            each
            for each in self.messages
            if (each.stream, each.epoch) == (stream, epoch) and first <= each.offset <= last and each.timestamp >= since
        ]
        return ColdPiece(tuple(found[:limit]), len(found) > limit)

    async def stop(self) -> None: ...

    def health(self) -> str:
        return "on strike" if self.down else ""

    def gauges(self) -> dict[str, float]:
        return {"archive_files": 1.0}


def _checked(archive: FakeArchive) -> Archive:
    return archive


class Bench:
    """A hot backend that keeps three messages of a stream, and an archive that has what it is told."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.rules = Rulebook(StreamRules(history_limit=HOT, history_ttl=300.0), ())
        self.hot = MemoryBackend(self.rules, self.clock)
        self.archive = FakeArchive()
        self.backend = TieredBackend(self.hot, _checked(self.archive), LIMIT)
        self.streams = self.backend.streams

    async def publish(self, count: int, archived: bool = True) -> list[Registered]:
        """One a second."""
        told: list[Registered] = []
        deliver = self.hot.feed.publish

        def tell(messages: Sequence[Deliverable]) -> None:
            told.extend(one_by_one(messages))
            deliver(messages)

        self.hot.feed.publish = tell
        for _ in range(count):
            self.clock.now += 1
            await self.streams.append([Publication("a", b"1")])
        self.hot.feed.publish = deliver
        if archived:
            self.archive.messages += told
        return told


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench()
    await bench.backend.start()
    yield bench
    await bench.backend.stop()


def offsets(messages: tuple[Registered, ...]) -> list[int]:
    return [each.offset for each in messages]


async def test_a_hot_answer_does_not_ask_the_archive(bench: Bench) -> None:
    told = await bench.publish(5)

    assert await bench.streams.replay("a", Position(told[0].epoch, 2)) == Replay("a", told[0].epoch, 5, tuple(told[2:]))
    assert await bench.streams.replay("unknown", BEFORE_ALL) == Replay("unknown", "", 0)
    assert bench.archive.reads == 0


async def test_what_left_the_hot_history_comes_from_the_archive_and_joins_up(bench: Bench) -> None:
    told = await bench.publish(9)

    assert await bench.streams.replay("a", BEFORE_ALL) == Replay("a", told[0].epoch, 9, tuple(told))
    assert await bench.streams.replay("a", Position(told[0].epoch, 4)) == Replay("a", told[0].epoch, 9, tuple(told[4:]))


async def test_another_epoch_is_no_matter_of_the_archive(bench: Bench) -> None:
    await bench.publish(9)

    answer = await bench.streams.replay("a", Position("former", 4))

    assert isinstance(answer, Gap)
    assert answer.reason == GapReason.EPOCH_CHANGED
    assert bench.archive.reads == 0


async def test_a_long_answer_is_cut_and_can_be_asked_on_for(bench: Bench) -> None:
    told = await bench.publish(25)
    epoch = told[0].epoch

    first = await bench.streams.replay("a", BEFORE_ALL)
    second = await bench.streams.replay("a", Position(epoch, 10))
    third = await bench.streams.replay("a", Position(epoch, 20))

    assert first == Gap("a", GapReason.PARTIAL, epoch, 11, 25, tuple(told[:10]))
    assert second == Gap("a", GapReason.PARTIAL, epoch, 21, 25, tuple(told[10:20]))
    assert third == Replay("a", epoch, 25, tuple(told[20:]))


async def test_a_hole_in_the_archive_is_a_gap_that_says_where_to_go_on(bench: Bench) -> None:
    told = await bench.publish(12)
    epoch = told[0].epoch
    del bench.archive.messages[4:6]

    rest = Replay("a", epoch, 12, tuple(told[6:]))
    assert await bench.streams.replay("a", BEFORE_ALL) == Gap("a", GapReason.TRIMMED, epoch, 7, 12, tuple(told[:4]), rest)
    assert await bench.streams.replay("a", Position(epoch, 6)) == Replay("a", epoch, 12, tuple(told[6:]))


async def test_every_hole_in_the_archive_is_a_gap_of_its_own(bench: Bench) -> None:
    told = await bench.publish(12)
    epoch = told[0].epoch
    for hole in (9, 8, 7, 5, 0):  # down to the hot history, in the middle, at the beginning
        del bench.archive.messages[hole]

    answer = await bench.streams.replay("a", BEFORE_ALL)

    hot = Replay("a", epoch, 12, tuple(told[9:]))
    third = Gap("a", GapReason.TRIMMED, epoch, 10, 12, (told[6],), hot)
    second = Gap("a", GapReason.TRIMMED, epoch, 7, 12, tuple(told[1:5]), third)
    assert answer == Gap("a", GapReason.TRIMMED, epoch, 2, 12, (), second)


async def test_a_hole_in_a_bounded_answer_is_followed_by_as_much_as_there_is_room_for(bench: Bench) -> None:
    told = await bench.publish(25)
    epoch = told[0].epoch
    del bench.archive.messages[4]

    answer = await bench.streams.replay("a", BEFORE_ALL)

    rest = Gap("a", GapReason.PARTIAL, epoch, 12, 25, tuple(told[5:11]))
    assert answer == Gap("a", GapReason.TRIMMED, epoch, 6, 25, tuple(told[:4]), rest)


async def test_what_is_neither_archived_nor_hot_is_a_gap_up_to_the_hot_history(bench: Bench) -> None:
    told = await bench.publish(4)
    later = await bench.publish(5, archived=False)

    answer = await bench.streams.replay("a", BEFORE_ALL)

    rest = Replay("a", told[0].epoch, 9, tuple(later[2:]))
    assert answer == Gap("a", GapReason.TRIMMED, told[0].epoch, 7, 9, tuple(told), rest)


async def test_an_archive_that_is_down_leaves_the_gap_as_it_was(bench: Bench) -> None:
    told = await bench.publish(9)
    bench.archive.down = True

    gap = Gap("a", GapReason.TRIMMED, told[0].epoch, 7, 9, rest=Replay("a", told[0].epoch, 9, tuple(told[6:])))
    assert await bench.streams.replay("a", BEFORE_ALL) == gap
    assert await bench.streams.since("a", 0.0) == gap
    assert bench.backend.health() == ""


async def test_what_is_published_while_the_archive_is_read_is_left_to_live_delivery(bench: Bench) -> None:
    told = await bench.publish(9)
    bench.archive.hot = bench.hot
    bench.archive.meanwhile = [Publication("a", b"2")] * 10  # more than the hot history keeps

    answer = await bench.streams.replay("a", BEFORE_ALL)

    assert answer == Replay("a", told[0].epoch, 9, tuple(told))


async def test_since_reaches_back_into_the_archive(bench: Bench) -> None:
    told = await bench.publish(9)

    assert await bench.streams.since("a", told[3].timestamp) == Replay("a", told[0].epoch, 9, tuple(told[3:]))
    assert await bench.streams.since("a", 0.0) == Replay("a", told[0].epoch, 9, tuple(told))


async def test_since_asks_the_archive_only_for_what_may_have_left_the_hot_history(bench: Bench) -> None:
    told = await bench.publish(9)
    await bench.streams.since("a", told[7].timestamp)
    await bench.streams.since("unknown", 0.0)
    assert bench.archive.reads == 0

    bench.clock.now += 400  # nothing is hot any more, because of its age and not for its number
    assert (await bench.streams.since("a", bench.clock.now - 299)).messages == ()
    assert bench.archive.reads == 0
    assert offsets((await bench.streams.since("a", told[5].timestamp)).messages) == [6, 7, 8, 9]


async def test_since_says_what_the_archive_does_not_have(bench: Bench) -> None:
    told = await bench.publish(9)
    epoch = told[0].epoch
    del bench.archive.messages[:2]

    whole = await bench.streams.since("a", told[3].timestamp)
    cut = await bench.streams.since("a", told[1].timestamp)

    assert whole == Replay("a", epoch, 9, tuple(told[3:]))
    assert cut == Gap("a", GapReason.TRIMMED, epoch, 3, 9, rest=Replay("a", epoch, 9, tuple(told[2:])))


async def test_since_is_a_gap_where_the_archive_cannot_answer_although_it_can_a_moment_later(bench: Bench) -> None:
    """One file may be unreadable and the one that holds the message before the hot ones good: nothing is complete then."""
    told = await bench.publish(9)
    bench.archive.fails = 1

    answer = await bench.streams.since("a", told[1].timestamp)

    assert answer == Gap("a", GapReason.TRIMMED, told[0].epoch, 7, 9, rest=Replay("a", told[0].epoch, 9, tuple(told[6:])))


async def test_since_is_cut_like_a_replay(bench: Bench) -> None:
    told = await bench.publish(25)

    answer = await bench.streams.since("a", told[2].timestamp)

    assert answer == Gap("a", GapReason.PARTIAL, told[0].epoch, 13, 25, tuple(told[2:12]))


async def test_pages_go_through_cold_and_hot_history(bench: Bench) -> None:
    told = await bench.publish(9)
    epoch = told[0].epoch

    assert await bench.streams.page("a", 0, 4) == HistoryPage("a", epoch, 9, 1, tuple(told[:4]), 4)
    assert await bench.streams.page("a", 4, 4) == HistoryPage("a", epoch, 9, 1, tuple(told[4:8]), 8)
    assert await bench.streams.page("a", 8, 4) == HistoryPage("a", epoch, 9, 7, tuple(told[8:]))
    assert await bench.streams.page("unknown", 0, 4) is None


async def test_a_page_ends_at_a_hole_and_the_next_one_says_it(bench: Bench) -> None:
    told = await bench.publish(9)
    epoch = told[0].epoch
    del bench.archive.messages[2:4]

    assert await bench.streams.page("a", 0, 100) == HistoryPage("a", epoch, 9, 1, tuple(told[:2]), 2)
    assert await bench.streams.page("a", 2, 100) == HistoryPage("a", epoch, 9, 5, tuple(told[4:]))


async def test_a_page_that_lacks_its_beginning_says_so_also_if_older_messages_are_there(bench: Bench) -> None:
    """The archive may be unable to answer for one range and answer for another a moment later."""
    told = await bench.publish(9)
    bench.archive.fails = 1

    assert await bench.streams.page("a", 2, 100) == HistoryPage("a", told[0].epoch, 9, 7, tuple(told[6:]))


async def test_a_page_past_the_bound_of_one_answer_is_shorter_and_says_where_to_go_on(bench: Bench) -> None:
    await bench.publish(25)

    page = await bench.streams.page("a", 0, 100)

    assert page is not None
    assert (offsets(page.messages), page.next_offset) == (list(range(1, 11)), 10)


async def test_a_client_gets_cold_then_hot_then_live(bench: Bench) -> None:
    async with Workbench(backend=bench.backend) as workbench:
        await bench.publish(9)
        bench.archive.hot = bench.hot
        client = await workbench.connect()
        await client.send(command="subscribe", identifier=public("a"), history={"streams": {"a": {"epoch": "", "offset": 0}}})
        await workbench.publish("a", "10")
        await settle()

        assert client.seen() == ["welcome", "confirm_subscription", *range(1, 10), "confirm_history", 10]


async def test_a_client_pages_through_a_long_history_and_gets_live_once(bench: Bench) -> None:
    async with Workbench(backend=bench.backend) as workbench:
        told = await bench.publish(25)
        client = await workbench.connect()
        ask = {"identifier": public("a")}
        places = [{"epoch": "", "offset": 0}, *({"epoch": told[0].epoch, "offset": offset} for offset in (10, 20))]
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


async def test_a_client_that_cannot_ask_again_gets_all_pages_of_a_long_history_before_live(bench: Bench) -> None:
    async with Workbench(backend=bench.backend) as workbench:
        await bench.publish(25)
        connection = RecordingConnection()
        session = workbench.node.open(ConnectRequest("", "", {}, {}), connection, SseCodec(unwrap=True, raw=True))
        assert await session.opened()
        bench.archive.busy = workbench
        assert await session.submit(Subscribe(public("a"), HistoryRequest(None, {"a": BEFORE_ALL})))
        bench.archive.busy = None
        await workbench.publish("a", "live")

        ids = re.findall(rb"^data: .*\nid: (\d+)/", b"".join(connection.written), re.M)
        assert [int(offset) for offset in ids] == list(range(1, len(ids) + 1))
        assert len(ids) == 25 + bench.archive.reads + 1
        assert b"".join(connection.written).endswith(b"id: %d/%b/a\n\n" % (len(ids), bench.archive.messages[0].epoch.encode()))


async def test_a_bounded_answer_that_reaches_up_to_live_completes_the_history(bench: Bench) -> None:
    async with Workbench(backend=bench.backend) as workbench:
        told = await bench.publish(14)
        client = await workbench.connect()
        ask = {"identifier": public("a")}
        await client.send(command="subscribe", **ask, history={"streams": {"a": {"epoch": "", "offset": 0}}})
        await bench.publish(30)  # by now even the rest of the history fills more than one answer
        await client.send(command="history", **ask, history={"streams": {"a": {"epoch": told[0].epoch, "offset": 10}}})
        rest = client.seen()[13:]

        assert client.seen()[2:13] == [*range(1, 11), "reject_history"]
        assert [seen for seen in rest if seen in (*range(15), "confirm_history")] == [11, 12, 13, 14, "confirm_history"]
