"""Readers with a name: marks only go forward, whatever is said of them and in whatever order."""

import pytest

from ropewalk.core.consumers import can_have_given, lag, moved, needed_from, pinned
from ropewalk.model.journal import Consumer, ShardMark, ShardSpan

GENERATION_SIZE = 1 << 40


def mark(position: int, epoch: str = "e") -> ShardMark:
    return ShardMark(epoch, position)


def test_what_was_pinned_first_counts_and_a_new_shard_gets_the_mark_given() -> None:
    assert pinned({1: mark(5)}, {1: mark(9), 0: mark(3)}) == {0: mark(3), 1: mark(5)}


def test_a_shard_goes_forward_and_never_back() -> None:
    marks = {0: mark(5), 1: mark(5)}

    assert moved(marks, {0: mark(9), 1: mark(4), 2: mark(0)}) == {0: mark(9), 1: mark(5), 2: mark(0)}


def test_a_later_generation_of_a_shard_is_further_than_all_of_the_one_before() -> None:
    assert moved({0: mark(500, "old")}, {0: mark(GENERATION_SIZE, "new")}) == {0: mark(GENERATION_SIZE, "new")}
    assert moved({0: mark(GENERATION_SIZE, "new")}, {0: mark(500, "old")}) == {0: mark(GENERATION_SIZE, "new")}


def test_marks_are_in_order_of_their_shards() -> None:
    assert list(moved({10: mark(1)}, {9: mark(1), 2: mark(1)})) == [2, 9, 10]


@pytest.mark.parametrize(
    ("given", "can"),
    [
        (mark(0, ""), True),
        (mark(1, ""), False),
        (mark(GENERATION_SIZE + 20, "old"), True),
        (mark(GENERATION_SIZE + 5, "old"), True),  # rows of it that are gone
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
    ],
)
def test_a_mark_has_the_epoch_of_its_position_as_far_as_that_is_known(given: ShardMark, can: bool) -> None:
    spans = [
        ShardSpan(0, "old", GENERATION_SIZE + 10, GENERATION_SIZE + 20),
        ShardSpan(0, "old", GENERATION_SIZE + 25, GENERATION_SIZE + 30),
        ShardSpan(0, "new", 3 * GENERATION_SIZE, 3 * GENERATION_SIZE + 7),
    ]

    assert can_have_given(spans, given) is can


def test_the_lag_is_what_can_be_read_and_was_not() -> None:
    spans = [
        ShardSpan(0, "old", 10, 30),
        ShardSpan(0, "new", GENERATION_SIZE, GENERATION_SIZE + 7),
        ShardSpan(1, "a", 0, 50),
        ShardSpan(2, "b", 0, 9),
    ]

    assert lag({0: mark(25, "old"), 1: mark(50, "a")}, spans) == {0: 5 + 7, 1: 0}
    assert lag({0: mark(0, "")}, spans) == {0: 20 + 7}


def test_what_is_needed_is_what_the_slowest_has_yet_to_read() -> None:
    consumers = [Consumer("a", {0: mark(5), 1: mark(50)}, 0.0), Consumer("b", {0: mark(9), 1: mark(2)}, 0.0)]

    assert needed_from(consumers) == {0: 5, 1: 2}
    assert needed_from([]) == {}
