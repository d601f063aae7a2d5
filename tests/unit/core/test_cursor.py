"""The cursor of a stream classifies messages as next, already delivered, after a gap, or of a new epoch."""

from hypothesis import given
from hypothesis import strategies as st

from ropewalk.core.cursor import MAX_FORMER_EPOCHS, Cursor, Step
from ropewalk.model.messages import Position


def test_offsets_are_next_old_or_a_jump() -> None:
    cursor = Cursor("e", 5)
    assert [cursor.take("e", offset) for offset in (6, 7, 7, 3, 9)] == [Step.NEXT, Step.NEXT, Step.OLD, Step.OLD, Step.JUMP]
    assert cursor.position == Position("e", 7), "a jump does not move it"


def test_stream_without_an_epoch_starts_at_offset_one() -> None:
    assert Cursor().take("e", 1) is Step.NEXT
    late = Cursor()
    assert late.take("e", 2) is Step.JUMP
    assert late.position == Position("e", 0), "the gap starts at offset 1"


def test_new_epoch_needs_confirmation_by_the_store() -> None:
    cursor = Cursor("e", 5)
    assert cursor.take("f", 1) is Step.NEW_EPOCH
    assert cursor.position == Position("e", 5)
    assert cursor.move("f", 0)
    assert cursor.take("f", 1) is Step.NEXT


def test_message_of_a_former_epoch_is_old() -> None:
    cursor = Cursor("e", 5)
    cursor.move("f", 3)
    assert cursor.take("e", 6) is Step.OLD
    assert not cursor.move("e", 9)
    assert not cursor.behind(Position("e", 9))
    assert cursor.position == Position("f", 3)


def test_cursor_never_moves_back_within_an_epoch() -> None:
    cursor = Cursor("e", 5)
    assert cursor.move("e", 3)
    assert cursor.offset == 5


def test_cursor_is_behind_later_offsets_and_other_epochs() -> None:
    cursor = Cursor("e", 5)
    ahead = [Position("e", 6), Position("f", 1), Position("f", 0)]
    assert [cursor.behind(position) for position in (*ahead, Position("e", 5), Position("", 0))] == [True] * 3 + [False] * 2


def test_former_epochs_are_kept_up_to_a_limit() -> None:
    cursor = Cursor("0", 1)
    for number in range(1, MAX_FORMER_EPOCHS + 2):
        cursor.move(str(number), 1)
    assert cursor.take("0", 2) is Step.NEW_EPOCH
    assert cursor.take("1", 2) is Step.OLD


@given(st.lists(st.integers(1, 12), max_size=60))
def test_accepted_offsets_are_dense_and_rising(offsets: list[int]) -> None:
    cursor = Cursor("e", 0)
    accepted = [offset for offset in offsets if cursor.take("e", offset) is Step.NEXT]
    assert accepted == list(range(1, len(accepted) + 1))
