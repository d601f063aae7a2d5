"""One stream's log, at the edges that the backend suite cannot reach through the port."""

import pytest

from ropewalk.core.history import HistoryTotals, StreamLog
from ropewalk.model.history import Gap, GapReason, Replay
from ropewalk.model.messages import Position, Publication
from ropewalk.model.rules import StreamRules


def log_of(limit: int = 3, ttl: float = 10.0, kept: HistoryTotals | None = None) -> StreamLog:
    return StreamLog("a", "epoch", StreamRules(limit, ttl), kept or HistoryTotals())


def fill(log: StreamLog, *times: float) -> None:
    for time in times:
        log.append(Publication("a", b"12345"), time)


def test_a_message_expires_exactly_at_its_ttl() -> None:
    log = log_of()
    fill(log, 100.0)
    assert len(log.since(0.0, 109.75).messages) == 1
    assert len(log.since(0.0, 110.0).messages) == 0


def test_a_clock_that_steps_back_does_not_put_messages_out_of_order_in_time() -> None:
    log = log_of()
    fill(log, 100.0, 50.0, 101.0)
    assert [message.timestamp for message in log.since(0.0, 101.0).messages] == [100.0, 100.0, 101.0]
    assert [message.offset for message in log.since(100.0, 101.0).messages] == [1, 2, 3]


def test_the_limit_and_the_ttl_leave_offsets_dense() -> None:
    log = log_of()
    fill(log, 1.0, 2.0, 3.0, 4.0)
    fill(log, 100.0)
    assert (log.tip, log.oldest, len(log)) == (5, 3, 3)
    log.trim(100.0)
    assert (log.tip, log.oldest, len(log)) == (5, 5, 1)


def test_the_time_of_the_next_trim_is_that_of_the_oldest_kept_message() -> None:
    log = log_of(limit=2)
    assert log.trim_at is None
    fill(log, 1.0, 2.0, 3.0)
    assert log.trim_at == 12.0
    log.trim(13.0)
    assert log.trim_at is None


def test_several_logs_count_together_what_they_keep() -> None:
    kept = HistoryTotals()
    one, two = log_of(limit=2, kept=kept), log_of(limit=2, kept=kept)
    fill(one, 1.0, 1.0, 1.0)
    fill(two, 1.0)
    assert (kept.messages, kept.bytes) == (3, 15)
    one.trim(11.0)
    assert (kept.messages, kept.bytes) == (1, 5)
    two.trim(11.0)
    assert (kept.messages, kept.bytes) == (0, 0)


def test_a_ttl_of_zero_keeps_nothing_not_even_until_the_next_look() -> None:
    kept = HistoryTotals()
    fill(log_of(ttl=0.0, kept=kept), 1.0, 2.0)
    assert (kept.messages, kept.bytes) == (0, 0)


def test_a_log_without_a_message_joins_up_with_offset_zero_only() -> None:
    log = log_of()
    assert log.after(Position("epoch", 0), 1.0) == Replay("a", "epoch", 0)
    assert log.after(Position("epoch", 1), 1.0) == Gap("a", GapReason.AHEAD, "epoch", 1, 0)


@pytest.mark.parametrize("after", [9, 2**63 - 1])
def test_a_page_past_the_tip_is_empty_and_the_last(after: int) -> None:
    log = log_of()
    fill(log, 1.0)
    page = log.page(after, 5, 1.0)
    assert (page.messages, page.next_offset) == ((), None)
