"""The window of unacknowledged pushes."""

from ropewalk.client.calls import PushWindow

A, B, C = b"a" * 40, b"b" * 40, b"c" * 40


def test_pushes_are_sent_in_order_when_connected() -> None:
    window = PushWindow()
    assert window.add(1, A) == []
    assert window.add(2, B) == []
    assert window.opened(1000) == [A, B]
    assert window.add(3, C) == [C]


def test_unacknowledged_bytes_are_limited() -> None:
    window = PushWindow()
    window.opened(80)
    assert [window.add(1, A), window.add(2, B), window.add(3, C)] == [[A], [B], []]
    assert window.answered(1) == [C]
    assert len(window) == 2


def test_push_larger_than_the_window_is_sent_alone() -> None:
    window = PushWindow()
    window.opened(10)
    assert [window.add(1, A), window.add(2, B)] == [[A], []]
    assert window.answered(1) == [B]


def test_unacknowledged_pushes_are_sent_first_after_a_reconnect() -> None:
    window = PushWindow()
    window.opened(80)
    for ref, frame in ((1, A), (2, B), (3, C)):
        window.add(ref, frame)
    window.answered(1)
    window.lost()
    assert window.add(4, A) == []
    assert window.opened(1000) == [B, C, A]


def test_push_fails_after_its_last_attempt() -> None:
    window = PushWindow()
    window.add(1, A)
    assert window.attempt_failed(2) == []
    window.add(2, B)
    assert window.attempt_failed(2) == [1]
    assert window.opened(1000) == [B]


def test_push_to_retry_leaves_the_window_to_others() -> None:
    window = PushWindow()
    window.opened(40)
    assert [window.add(1, A), window.add(2, B)] == [[A], []]
    assert window.suspend(1) == 1
    assert window.retry(1) == [B]
    assert window.answered(2) == [A]
    assert window.suspend(1) == 2
    assert window.suspend(7) == 0


def test_push_to_retry_survives_a_lost_connection() -> None:
    window = PushWindow()
    window.opened(1000)
    window.add(1, A)
    window.suspend(1)
    window.lost()
    assert window.retry(1) == []
    assert window.opened(1000) == [A]


def test_discarded_push_is_not_sent_again() -> None:
    window = PushWindow()
    window.opened(40)
    window.add(1, A)
    window.add(2, B)
    window.discard(1)
    window.discard(2)
    assert window.answered(9) == []
    window.lost()
    assert window.opened(1000) == []
    assert len(window) == 0


def test_discard_all_empties_the_window() -> None:
    window = PushWindow()
    window.opened(80)
    for ref, frame in ((1, A), (2, B), (3, C)):
        window.add(ref, frame)
    window.suspend(2)
    window.discard_all()
    window.lost()
    assert window.opened(1000) == []
    assert len(window) == 0
