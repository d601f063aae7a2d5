"""Named consumers: their marks only move forward, in any order of updates."""

import pytest

from ropewalk.core.consumers import count_lag, find_needed_positions, is_valid_mark, move_marks, pin_marks
from ropewalk.model.journal import Consumer, ShardMark, ShardSpan

GENERATION_SIZE = 1 << 40


def mark(position: int, epoch: str = "e") -> ShardMark:
    return ShardMark(epoch, position)


def test_pinning_keeps_existing_marks_and_adds_new_shards() -> None:
    assert pin_marks({1: mark(5)}, {1: mark(9), 0: mark(3)}) == {0: mark(3), 1: mark(5)}


def test_marks_only_move_forward() -> None:
    marks = {0: mark(5), 1: mark(5)}

    assert move_marks(marks, {0: mark(9), 1: mark(4), 2: mark(0)}) == {0: mark(9), 1: mark(5), 2: mark(0)}


def test_later_generation_is_ahead_of_every_position_before_it() -> None:
    assert move_marks({0: mark(500, "old")}, {0: mark(GENERATION_SIZE, "new")}) == {0: mark(GENERATION_SIZE, "new")}
    assert move_marks({0: mark(GENERATION_SIZE, "new")}, {0: mark(500, "old")}) == {0: mark(GENERATION_SIZE, "new")}


def test_marks_are_sorted_by_shard() -> None:
    assert list(move_marks({10: mark(1)}, {9: mark(1), 2: mark(1)})) == [2, 9, 10]


def test_mark_is_valid_if_its_epoch_matches_its_position(subtests: pytest.Subtests) -> None:
    rows: list[tuple[ShardMark, bool]] = [
        (mark(0, ""), True),
        (mark(1, ""), False),
        (mark(GENERATION_SIZE + 20, "old"), True),
        (mark(GENERATION_SIZE + 5, "old"), True),  # these rows were trimmed
        (mark(GENERATION_SIZE + 30, "old"), True),
        (mark(GENERATION_SIZE + 31, "old"), False),
        (mark(GENERATION_SIZE + 20, "new"), False),
        (mark(GENERATION_SIZE + 20, "e"), False),
        (mark(3 * GENERATION_SIZE, "new"), True),
        (mark(3 * GENERATION_SIZE + 7, "new"), True),
        (mark(3 * GENERATION_SIZE + 8, "new"), False),
        (mark(3 * GENERATION_SIZE, "old"), False),
        (mark(5, "forgotten"), True),
        (mark(2 * GENERATION_SIZE, "forgotten"), True),
        (mark(5, "old"), False),
    ]
    for mark_given, valid in rows:
        with subtests.test(mark_given=mark_given, valid=valid):
            spans = [
                ShardSpan(0, "old", GENERATION_SIZE + 10, GENERATION_SIZE + 20),
                ShardSpan(0, "old", GENERATION_SIZE + 25, GENERATION_SIZE + 30),
                ShardSpan(0, "new", 3 * GENERATION_SIZE, 3 * GENERATION_SIZE + 7),
            ]

            assert is_valid_mark(spans, mark_given) is valid


def test_lag_counts_readable_rows_behind_the_mark() -> None:
    spans = [
        ShardSpan(0, "old", 10, 30),
        ShardSpan(0, "new", GENERATION_SIZE, GENERATION_SIZE + 7),
        ShardSpan(1, "a", 0, 50),
        ShardSpan(2, "b", 0, 9),
    ]

    assert count_lag({0: mark(25, "old"), 1: mark(50, "a")}, spans) == {0: 5 + 7, 1: 0}
    assert count_lag({0: mark(0, "")}, spans) == {0: 20 + 7}


def test_rows_are_needed_from_the_slowest_consumer_on() -> None:
    consumers = [Consumer("a", {0: mark(5), 1: mark(50)}, 0.0), Consumer("b", {0: mark(9), 1: mark(2)}, 0.0)]

    assert find_needed_positions(consumers) == {0: 5, 1: 2}
    assert find_needed_positions([]) == {}
