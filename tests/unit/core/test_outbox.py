"""The outbox: order, bounds and overflow policies."""

from ropewalk.core.outbox import Outbox, Skipped
from ropewalk.model.rules import SlowPolicy

DROP, DISCONNECT = SlowPolicy.DROP, SlowPolicy.DISCONNECT
ALL = 1_000_000


def test_frames_are_taken_in_order() -> None:
    outbox = Outbox(100)
    for key, frame in (("a", b"1"), (None, b"2"), ("b", b"3"), ("a", b"4")):
        assert outbox.offer(key, frame, DISCONNECT)
    assert (outbox.size, bool(outbox)) == (4, True)
    assert outbox.take(ALL) == [b"1", b"2", b"3", b"4"]
    assert (outbox.size, bool(outbox)) == (0, False)


def test_full_outbox_refuses_frames_that_must_not_be_dropped() -> None:
    outbox = Outbox(4)
    assert outbox.offer("a", b"1234", DISCONNECT)
    assert not outbox.offer("a", b"5", DISCONNECT)
    assert outbox.take(ALL) == [b"1234"]
    assert outbox.dropped == 0


def test_overflow_keeps_the_newest_frame_of_the_stream_after_a_skip_notice() -> None:
    outbox = Outbox(6)
    for key, frame, policy in (("a", b"a1", DROP), (None, b"c1", DISCONNECT), ("a", b"a2", DROP), ("a", b"a3", DROP)):
        assert outbox.offer(key, frame, policy)
    assert outbox.dropped == 2
    assert outbox.take(ALL) == [b"c1", Skipped("a"), b"a3"]


def test_repeated_skips_are_reported_once() -> None:
    outbox = Outbox(2)
    for frame in (b"a1", b"a2", b"a3"):
        assert outbox.offer("a", frame, DROP)
    assert outbox.dropped == 2
    assert outbox.take(ALL) == [Skipped("a"), b"a3"]


def test_frames_after_a_skip_are_taken_as_usual() -> None:
    outbox = Outbox(4)
    for frame in (b"a1", b"a2", b"a3", b"a4"):
        assert outbox.offer("a", frame, DROP)
    assert outbox.take(ALL) == [Skipped("a"), b"a3", b"a4"]
    assert outbox.offer("a", b"a5", DROP)
    assert outbox.take(ALL) == [b"a5"]


def test_droppable_stream_makes_room_for_other_streams_and_control_frames() -> None:
    for key, policy in (("b", DROP), ("b", DISCONNECT), (None, DISCONNECT)):
        outbox = Outbox(6)
        for frame in (b"a1", b"a2", b"a3"):
            assert outbox.offer("a", frame, DROP)
        assert outbox.offer(key, b"b1", policy)
        assert outbox.take(ALL) == [Skipped("a"), b"a3", b"b1"]


def test_newest_frame_of_a_stream_is_not_dropped_for_droppable_frames_of_others() -> None:
    outbox = Outbox(4)
    for key in "ab":
        assert outbox.offer(key, f"{key}1".encode(), DROP, 0, 1)
    assert outbox.offer("c", b"c1", DROP, 0, 1)
    assert outbox.take(ALL) == [b"a1", b"b1", Skipped("c", 0, 1)]


def test_newest_frames_of_streams_make_room_for_frames_that_must_not_be_dropped() -> None:
    outbox = Outbox(4)
    for number, frame in enumerate((b"a1", b"a2")):
        assert outbox.offer("a", frame, DROP, number, number + 1)
    assert outbox.offer(None, b"c1", DISCONNECT)
    assert outbox.offer(None, b"c2", DISCONNECT)
    assert not outbox.offer(None, b"c3", DISCONNECT)
    assert outbox.dropped == 2
    assert outbox.take(ALL) == [Skipped("a", 0, 2), b"c1", b"c2"]


def test_oversized_droppable_frame_is_dropped_without_dropping_pending_frames() -> None:
    outbox = Outbox(6)
    for number, frame in enumerate((b"a1", b"a2", b"1234567", b"7654321", b"a3")):
        assert outbox.offer("a", frame, DROP, number, number + 1)
    assert (outbox.dropped, outbox.take(ALL)) == (2, [b"a1", b"a2", Skipped("a", 2, 4), b"a3"])


def test_dropped_oversized_frame_is_reported_without_a_following_frame() -> None:
    outbox = Outbox(6)
    assert outbox.offer("a", b"1234567", DROP, 0, 1)
    assert outbox
    assert (outbox.take(ALL), bool(outbox), outbox.size) == ([Skipped("a", 0, 1)], False, 0)


def test_droppable_frame_is_dropped_when_no_pending_frame_can_be() -> None:
    outbox = Outbox(4)
    assert outbox.offer(None, b"1234", DISCONNECT)
    assert outbox.offer("a", b"a1", DROP, 0, 1)
    assert outbox.take(ALL) == [b"1234", Skipped("a", 0, 1)]


def test_skip_has_the_range_of_dropped_marks() -> None:
    outbox = Outbox(4)
    for number, frame in enumerate((b"a1", b"a2", b"a3", b"a4", b"a5")):
        assert outbox.offer("a", frame, DROP, number, number + 1)
    assert outbox.take(2) == [Skipped("a", 0, 4), b"a5"]
    for number, frame in ((5, b"a6"), (6, b"a7"), (7, b"a8")):
        assert outbox.offer("a", frame, DROP, number, number + 1)
    assert outbox.offer(None, b"12", DISCONNECT)
    assert outbox.take(ALL) == [Skipped("a", 5, 7), b"a8", b"12"]


def test_stream_cut_for_another_reports_all_dropped_frames() -> None:
    outbox = Outbox(4)
    for number, frame in enumerate((b"a1", b"12345", b"a2")):
        assert outbox.offer("a", frame, DROP, number, number + 1)
    assert outbox.offer(None, b"c1", DISCONNECT)
    assert outbox.take(ALL) == [Skipped("a", 0, 2), b"a2", b"c1"]
    assert outbox.dropped == 2


def test_only_droppable_frames_of_a_stream_are_dropped() -> None:
    outbox = Outbox(6)
    assert outbox.offer("a", b"a1", DISCONNECT)
    assert outbox.offer("a", b"a2", DROP)
    assert outbox.take(1) == [b"a1"]
    assert outbox.offer("a", b"a3", DISCONNECT)
    assert outbox.offer("a", b"a4", DROP)
    assert outbox.offer("a", b"a5", DROP)
    assert (outbox.dropped, outbox.take(ALL)) == (2, [b"a3", Skipped("a"), b"a5"])


def test_take_respects_its_budget_but_returns_at_least_one_frame() -> None:
    outbox = Outbox(100)
    for frame in (b"12345", b"12", b"12", b"12"):
        assert outbox.offer("a", frame, DISCONNECT)
    assert outbox.take(3) == [b"12345"]
    assert outbox.take(4) == [b"12", b"12"]
    assert outbox.take(0) == [b"12"]
    assert outbox.take(0) == []


def test_queue_stays_bounded_while_frames_are_dropped() -> None:
    outbox = Outbox(10)
    assert outbox.offer(None, b"wait", DISCONNECT)
    for number in range(1000):
        assert outbox.offer("a", b"%03d" % number, DROP)
    assert len(outbox._line) < 100
    assert outbox.take(ALL)[:2] == [b"wait", Skipped("a")]
