"""Edge cases of one stream's log that the backend suite cannot reach through the port."""

import pytest

from ropewalk.core.history import HistoryTotals, StreamLog
from ropewalk.model.history import Gap, GapReason, Replay
from ropewalk.model.messages import Position, Publication
from ropewalk.model.rules import StreamRules


def make_log(limit: int = 3, ttl: float = 10.0, totals: HistoryTotals | None = None) -> StreamLog:
    return StreamLog("a", "epoch", StreamRules(limit, ttl), totals or HistoryTotals())


def fill(log: StreamLog, *times: float) -> None:
    for time in times:
        log.append(Publication("a", b"12345"), time)


def test_message_expires_exactly_at_its_ttl() -> None:
    log = make_log()
    fill(log, 100.0)
    assert len(log.since(0.0, 109.75).messages) == 1
    assert len(log.since(0.0, 110.0).messages) == 0


def test_timestamps_do_not_decrease_when_the_clock_steps_back() -> None:
    log = make_log()
    fill(log, 100.0, 50.0, 101.0)
    assert [message.timestamp for message in log.since(0.0, 101.0).messages] == [100.0, 100.0, 101.0]
    assert [message.offset for message in log.since(100.0, 101.0).messages] == [1, 2, 3]


def test_offsets_stay_dense_after_trimming_by_limit_and_ttl() -> None:
    log = make_log()
    fill(log, 1.0, 2.0, 3.0, 4.0)
    fill(log, 100.0)
    assert (log.tip, log.oldest, len(log)) == (5, 3, 3)
    log.trim(100.0)
    assert (log.tip, log.oldest, len(log)) == (5, 5, 1)


def test_next_trim_is_when_the_oldest_message_expires() -> None:
    log = make_log(limit=2)
    assert log.trim_at is None
    fill(log, 1.0, 2.0, 3.0)
    assert log.trim_at == 12.0
    log.trim(13.0)
    assert log.trim_at is None


def test_logs_share_one_total_of_messages_and_bytes() -> None:
    totals = HistoryTotals()
    one, two = make_log(limit=2, totals=totals), make_log(limit=2, totals=totals)
    fill(one, 1.0, 1.0, 1.0)
    fill(two, 1.0)
    assert (totals.messages, totals.bytes) == (3, 15)
    one.trim(11.0)
    assert (totals.messages, totals.bytes) == (1, 5)
    two.trim(11.0)
    assert (totals.messages, totals.bytes) == (0, 0)


def test_ttl_of_zero_stores_nothing() -> None:
    totals = HistoryTotals()
    fill(make_log(ttl=0.0, totals=totals), 1.0, 2.0)
    assert (totals.messages, totals.bytes) == (0, 0)


def test_empty_log_accepts_offset_zero_only() -> None:
    log = make_log()
    assert log.after(Position("epoch", 0), 1.0) == Replay("a", "epoch", 0)
    assert log.after(Position("epoch", 1), 1.0) == Gap("a", GapReason.AHEAD, "epoch", 1, 0)


def test_page_past_the_tip_is_empty_and_the_last(subtests: pytest.Subtests) -> None:
    rows: list[int] = [9, 2**63 - 1]
    for after in rows:
        with subtests.test(after=after):
            log = make_log()
            fill(log, 1.0)
            page = log.page(after, 5, 1.0)
            assert (page.messages, page.next_offset) == ((), None)
