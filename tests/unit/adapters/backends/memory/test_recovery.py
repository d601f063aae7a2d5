"""A backend recovered from journal rows answers like the one that wrote them. Downtime does not count."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from ropewalk.adapters.backends.memory import MemoryBackend
from ropewalk.core.rules import Rulebook
from ropewalk.model.history import Gap, GapReason, Replay, split_at_gaps
from ropewalk.model.journal import Recovered, Row, RowKind, StreamTip
from ropewalk.model.limits import StoreLimits
from ropewalk.model.messages import LAST_KSUID, Position, Publication, Receipt
from ropewalk.model.rules import StreamRules
from ropewalk.testing.clock import ManualClock
from tests.unit.adapters.backends.fake_journal import FakeJournal

STREAMS = ("a", "b", "c")
RULES = StreamRules(history_limit=5, history_ttl=100.0)


def backend_on(clock: ManualClock, journal: FakeJournal | None = None) -> MemoryBackend:
    return MemoryBackend(Rulebook(RULES), clock, StoreLimits(dedup_ttl=60.0), journal)


def recovered(clock: ManualClock, found: Recovered) -> MemoryBackend:
    backend = backend_on(clock)
    backend.recover(found, 300.0, 15.0)
    return backend


def places(receipts: Sequence[Receipt]) -> list[tuple[str, int, bool]]:
    return [(item.epoch, item.offset, not item.duplicate) for item in receipts]


publications = st.builds(
    Publication,
    st.sampled_from(STREAMS),
    st.binary(max_size=3),
    exclude_socket=st.sampled_from(("", "sid")),
    broadcast_type=st.sampled_from(("", "kind")),
    uid=st.sampled_from(("", "", "u", LAST_KSUID)),
    producer=st.sampled_from(("", "", "p", "q")),
    sequence=st.integers(0, 6),
    ts_producer=st.sampled_from((0, 1, 2**64 - 1)),
).map(lambda publication: replace(publication, partition_key="k") if publication.stream == "c" else publication)
appends = st.lists(st.tuples(st.sampled_from((0.0, 1.0, 40.0)), st.lists(publications, min_size=1, max_size=5)), max_size=12)


@given(appends, st.booleans(), st.lists(publications, min_size=1, max_size=8))
async def test_recovered_backend_answers_like_the_original(
    story: list[tuple[float, list[Publication]]], instant: bool, sequel: list[Publication]
) -> None:
    clock, journal = ManualClock(), FakeJournal(instant)
    before = backend_on(clock, journal)
    for pause, batch in story:
        clock.advance(pause)
        await before.streams.append(batch)
    found = Recovered(rows=list(journal.rows), newest=clock.now)
    after = recovered(clock, found)
    for stream in STREAMS:
        tip = await before.streams.tip(stream)
        assert await after.streams.tip(stream) == tip
        assert await after.streams.partition_key(stream) == await before.streams.partition_key(stream)
        for offset in range(tip.offset + 2):
            position = Position(tip.epoch, offset)
            assert await after.streams.replay(stream, position) == await before.streams.replay(stream, position)
    registrations = [publication for publication in sequel if (await before.streams.tip(publication.stream)).offset]
    assert places(await after.streams.append(registrations)) == places(await before.streams.append(registrations))


async def test_stream_without_rows_continues_from_its_tip() -> None:
    clock = ManualClock()
    backend = recovered(clock, Recovered(tips=[StreamTip("a", "e", 41, clock.now - 90_000)]))
    assert await backend.streams.replay("a", Position("e", 41)) == Replay("a", "e", 41)
    answer = await backend.streams.replay("a", Position("e", 40))
    assert (answer.reason if not isinstance(answer, Replay) else None) is GapReason.TRIMMED
    assert places(await backend.streams.append([Publication("a", b"1")])) == [("e", 42, True)]


async def test_tip_may_be_older_or_newer_than_the_rows() -> None:
    clock = ManualClock()
    rows = [Row(RowKind.PUBLISH, "a", clock.now, "a", "e", offset, b"%d" % offset) for offset in (7, 8, 9)]
    for tip in (6, 9):
        backend = recovered(clock, Recovered(tips=[StreamTip("a", "e", tip, clock.now)], rows=rows))
        answer = await backend.streams.replay("a", Position("e", 6))
        assert isinstance(answer, Replay)
        assert [message.offset for message in answer.messages] == [7, 8, 9]


def rows_of_a(clock: ManualClock, offsets: tuple[int, ...]) -> list[Row]:
    """One per second, the last one now."""
    times = [clock.now - len(offsets) + 1 + place for place in range(len(offsets))]
    return [Row(RowKind.PUBLISH, "a", time, "a", "e", offset, b"1") for time, offset in zip(times, offsets, strict=True)]


async def test_since_reports_a_gap_if_messages_may_be_missing(subtests: pytest.Subtests) -> None:
    rows: list[tuple[tuple[int, float], tuple[int, ...], bool]] = [
        ((6, -60.0), (7, 8, 9), False),  # the tip proves that the removed messages are older
        ((6, -2.0), (7, 8, 9), True),  # the removed messages may be newer
        ((9, 0.0), (7, 8, 9), True),  # the age of the removed messages is unknown
        ((9, 0.0), (1, 2, 3), False),  # nothing is missing
        ((9, 0.0), (), True),
    ]
    for tip, offsets, gap in rows:
        with subtests.test(tip=tip, offsets=offsets, gap=gap):
            clock = ManualClock()
            tips = [StreamTip("a", "e", tip[0], clock.now + tip[1])]
            backend = recovered(clock, Recovered(tips=tips, rows=rows_of_a(clock, offsets)))
            answer = await backend.streams.since("a", clock.now - 2)
            assert isinstance(answer, Gap) is gap
            kept = [message.offset for step in split_at_gaps(answer) for message in step.messages]
            assert kept == list(offsets)


async def test_since_within_the_kept_messages_has_no_gap() -> None:
    clock = ManualClock()
    backend = recovered(clock, Recovered(tips=[StreamTip("a", "e", 9, clock.now)], rows=rows_of_a(clock, (7, 8, 9))))
    answer = await backend.streams.since("a", clock.now - 1)
    assert isinstance(answer, Replay)
    assert [message.offset for message in answer.messages] == [8, 9]


async def test_stream_with_two_epochs_in_the_rows_is_in_the_last_one() -> None:
    clock = ManualClock()
    rows = [Row(RowKind.PUBLISH, "a", clock.now, "a", epoch, 1, b"1") for epoch in ("old", "new")]
    backend = recovered(clock, Recovered(tips=[StreamTip("a", "old", 1, 0.0)], rows=rows))
    assert await backend.streams.tip("a") == Position("new", 1)
    assert backend.gauges()["history_messages"] == 1


async def test_stream_with_epochs_in_two_shards_is_in_the_last_one(subtests: pytest.Subtests) -> None:
    for turned in [False, True]:
        for by_tips in [False, True]:
            with subtests.test(turned=turned, by_tips=by_tips):
                clock = ManualClock()
                rows = [
                    Row(RowKind.PUBLISH, "k", clock.now - 90.0, "a", "old", 7, b"1"),
                    Row(RowKind.PUBLISH, "a", clock.now, "a", "new", 1, b"1"),
                ]
                tips = [StreamTip("a", row.epoch, row.offset, row.timestamp, "k" if row.key == "k" else "") for row in rows]
                if turned:  # shards are read by number
                    rows, tips = rows[::-1], tips[::-1]
                backend = recovered(clock, Recovered(tips=tips) if by_tips else Recovered(rows=rows))
                assert await backend.streams.tip("a") == Position("new", 1)
                assert await backend.streams.partition_key("a") == "a"


async def test_removed_stream_may_start_with_another_partition_key() -> None:
    clock = ManualClock()
    backend = backend_on(clock)
    await backend.streams.append([Publication("a", b"1", partition_key="k")])
    clock.advance(100_000)
    await backend.sweep()
    assert await backend.streams.partition_key("a") == "a"
    await backend.streams.append([Publication("a", b"1", partition_key="other")])
    assert await backend.streams.partition_key("a") == "other"


async def test_downtime_does_not_count_for_the_uid_lifetime() -> None:
    clock, journal = ManualClock(), FakeJournal()
    before = backend_on(clock, journal)
    await before.streams.append([Publication("a", b"1", uid="u")])
    clock.advance(30)
    await before.streams.append([Publication("a", b"1")])
    clock.advance(10_000)
    after = recovered(clock, journal.recovered())
    registrations = []
    for pause in (29, 1):
        clock.advance(pause)
        [receipt] = await after.streams.append([Publication("a", b"1", uid="u")])
        registrations.append(receipt.duplicate)
    assert registrations == [True, False]


async def test_downtime_does_not_count_for_the_idle_time_of_a_stream() -> None:
    clock, journal = ManualClock(), FakeJournal()
    [first] = await backend_on(clock, journal).streams.append([Publication("a", b"1")])
    clock.advance(1_000_000)
    after = recovered(clock, journal.recovered())
    for pause in (0, 999):
        clock.advance(pause)
        await after.sweep()
        assert await after.streams.tip("a") == Position(first.epoch, 1)
    clock.advance(1)
    await after.sweep()
    await after.sweep()
    assert await after.streams.tip("a") == Position("", 0)


async def test_sequences_up_to_the_recovered_one_are_duplicates() -> None:
    backend = recovered(ManualClock(), Recovered(shards=4, producers={("p", shard): 7 for shard in range(4)}))
    batch = [Publication("a", b"1", producer="p", sequence=number) for number in (6, 7, 8)]
    assert [item.duplicate for item in await backend.streams.append(batch)] == [True, True, False]
