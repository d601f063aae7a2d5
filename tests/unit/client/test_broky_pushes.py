"""Which pushes are on the wire."""

from ropewalk.client.broky_pushes import PushWindow

A, B, C = b"a" * 40, b"b" * 40, b"c" * 40


def test_pushes_wait_for_a_connection_and_go_out_in_their_order() -> None:
    window = PushWindow()
    assert window.add(1, A) == []
    assert window.add(2, B) == []
    assert window.opened(1000) == [A, B]
    assert window.add(3, C) == [C]


def test_no_more_bytes_are_unanswered_than_the_server_allows() -> None:
    window = PushWindow()
    window.opened(80)
    assert [window.add(1, A), window.add(2, B), window.add(3, C)] == [[A], [B], []]
    assert window.answered(1) == [C]
    assert len(window) == 2


def test_one_that_is_larger_than_that_goes_alone() -> None:
    window = PushWindow()
    window.opened(10)
    assert [window.add(1, A), window.add(2, B)] == [[A], []]
    assert window.answered(1) == [B]


def test_what_was_not_answered_goes_first_on_the_next_connection() -> None:
    window = PushWindow()
    window.opened(80)
    for ref, frame in ((1, A), (2, B), (3, C)):
        window.add(ref, frame)
    window.answered(1)
    window.lost()
    assert window.add(4, A) == []
    assert window.opened(1000) == [B, C, A]


def test_a_push_is_given_up_after_its_last_attempt() -> None:
    window = PushWindow()
    window.add(1, A)
    assert window.failed(2) == []
    window.add(2, B)
    assert window.failed(2) == [1]
    assert window.opened(1000) == [B]


def test_one_that_cannot_be_registered_now_rests_and_others_pass() -> None:
    window = PushWindow()
    window.opened(40)
    assert [window.add(1, A), window.add(2, B)] == [[A], []]
    assert window.rest(1) == 1
    assert window.again(1) == [B]
    assert window.answered(2) == [A]
    assert window.rest(1) == 2
    assert window.rest(7) == 0


def test_what_rests_is_not_lost_with_the_connection() -> None:
    window = PushWindow()
    window.opened(1000)
    window.add(1, A)
    window.rest(1)
    window.lost()
    assert window.again(1) == []
    assert window.opened(1000) == [A]


def test_what_nobody_waits_for_is_not_sent_again() -> None:
    window = PushWindow()
    window.opened(40)
    window.add(1, A)
    window.add(2, B)
    window.forget(1)
    window.forget(2)
    assert window.answered(9) == []
    window.lost()
    assert window.opened(1000) == []
    assert len(window) == 0


def test_after_an_end_for_good_nothing_is_left() -> None:
    window = PushWindow()
    window.opened(80)
    for ref, frame in ((1, A), (2, B), (3, C)):
        window.add(ref, frame)
    window.rest(2)
    window.forget_all()
    window.lost()
    assert window.opened(1000) == []
    assert len(window) == 0
