"""The cursor of a stream: what follows is told from what was delivered, what is missing, and what began anew."""

from hypothesis import given
from hypothesis import strategies as st

from ropewalk.core.cursor import FORMER_EPOCHS, Cursor, Step
from ropewalk.model.messages import Position


def test_offsets_follow_one_another() -> None:
    cursor = Cursor("e", 5)
    assert [cursor.take("e", offset) for offset in (6, 7, 7, 3, 9)] == [Step.NEXT, Step.NEXT, Step.OLD, Step.OLD, Step.JUMP]
    assert cursor.position == Position("e", 7), "a jump does not move it"


def test_the_first_epoch_of_a_stream_nobody_published_to_begins_with_its_first_message() -> None:
    assert Cursor().take("e", 1) is Step.NEXT
    late = Cursor()
    assert late.take("e", 2) is Step.JUMP
    assert late.position == Position("e", 0), "what is missing is known"


def test_a_new_epoch_is_for_the_store_to_confirm() -> None:
    cursor = Cursor("e", 5)
    assert cursor.take("f", 1) is Step.NEW_EPOCH
    assert cursor.position == Position("e", 5)
    assert cursor.move("f", 0)
    assert cursor.take("f", 1) is Step.NEXT


def test_what_comes_late_of_an_epoch_that_is_over_is_old_and_never_leads_back() -> None:
    cursor = Cursor("e", 5)
    cursor.move("f", 3)
    assert cursor.take("e", 6) is Step.OLD
    assert not cursor.move("e", 9)
    assert not cursor.behind(Position("e", 9))
    assert cursor.position == Position("f", 3)


def test_it_never_goes_back_within_an_epoch() -> None:
    cursor = Cursor("e", 5)
    assert cursor.move("e", 3)
    assert cursor.offset == 5


def test_a_position_of_the_store_may_be_ahead() -> None:
    cursor = Cursor("e", 5)
    ahead = [Position("e", 6), Position("f", 1), Position("f", 0)]
    assert [cursor.behind(position) for position in (*ahead, Position("e", 5), Position("", 0))] == [True] * 3 + [False] * 2


def test_epochs_that_are_over_are_remembered_for_a_while() -> None:
    cursor = Cursor("0", 1)
    for number in range(1, FORMER_EPOCHS + 2):
        cursor.move(str(number), 1)
    assert cursor.take("0", 2) is Step.NEW_EPOCH
    assert cursor.take("1", 2) is Step.OLD


@given(st.lists(st.integers(1, 12), max_size=60))
def test_what_it_lets_through_is_dense_and_rising_whatever_comes(offsets: list[int]) -> None:
    cursor = Cursor("e", 0)
    through = [offset for offset in offsets if cursor.take("e", offset) is Step.NEXT]
    assert through == list(range(1, len(through) + 1))
