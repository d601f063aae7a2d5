"""Marks and ranges: rows between two marks are read exactly once, and losses are reported."""

import json

from hypothesis import given
from hypothesis import strategies as st

from ropewalk.model.journal import GENERATION_SIZE, ShardMark, ShardSpan
from ropewalk.pipeline.offsets import PositionRange, advance, decode, earliest, encode, ranges_between, remaining, split

GONE = ShardSpan(3, "old", 90, 90)
OLD, NEW = ShardSpan(3, "old", 10, 90), ShardSpan(3, "new", GENERATION_SIZE, GENERATION_SIZE + 50)


def test_encoded_offset_is_sorted_by_shard_number() -> None:
    marks = {10: ShardMark("b", 2), 2: ShardMark("a", 1)}

    assert json.dumps(encode(marks)) == '{"2": {"e": "a", "p": 1}, "10": {"e": "b", "p": 2}}'
    assert decode(encode(marks)) == marks


def test_two_marks_of_one_epoch_are_one_piece() -> None:
    assert ranges_between(3, [], ShardMark("old", 5), ShardMark("old", 30)) == [PositionRange(3, "old", 5, 30)]


def test_epoch_is_read_to_its_end_before_the_next() -> None:
    found = ranges_between(3, [OLD, NEW], ShardMark("old", 80), ShardMark("new", GENERATION_SIZE + 5))

    assert found == [PositionRange(3, "old", 80, 90), PositionRange(3, "new", GENERATION_SIZE, GENERATION_SIZE + 5)]


def test_holes_do_not_end_an_epoch() -> None:
    spans = [ShardSpan(3, "old", 0, 20), ShardSpan(3, "old", 30, 90), NEW]

    assert ranges_between(3, spans, ShardMark("old", 10), ShardMark("new", GENERATION_SIZE)) == [
        PositionRange(3, "old", 10, 90)
    ]


def test_damaged_end_is_part_of_its_epoch() -> None:
    spans = [ShardSpan(3, "old", 0, 60), ShardSpan(3, "old", 90, 90), NEW]

    assert ranges_between(3, spans, ShardMark("old", 10), ShardMark("new", GENERATION_SIZE)) == [
        PositionRange(3, "old", 10, 90)
    ]
    assert ranges_between(3, spans, ShardMark("old", 90), ShardMark("new", GENERATION_SIZE)) == []


def test_unknown_epoch_is_a_loss_of_unknown_size() -> None:
    lost, rest = ranges_between(3, [OLD], ShardMark("other", 40), ShardMark("old", 90))

    assert (lost.replaced, lost.first, lost.rows) == (True, 40, 0)
    assert rest == PositionRange(3, "old", 10, 90)


def test_unknown_epoch_without_rows_is_not_a_loss() -> None:
    assert ranges_between(3, [NEW], ShardMark("empty", 0), ShardMark("new", GENERATION_SIZE + 1)) == [
        PositionRange(3, "new", GENERATION_SIZE, GENERATION_SIZE + 1)
    ]


def test_trimmed_generation_that_was_read_is_not_a_loss() -> None:
    assert ranges_between(3, [GONE, NEW], ShardMark("old", 90), ShardMark("new", GENERATION_SIZE + 5)) == [
        PositionRange(3, "new", GENERATION_SIZE, GENERATION_SIZE + 5)
    ]


def test_trimmed_generation_that_was_partly_read_misses_the_rest() -> None:
    found = ranges_between(3, [GONE, NEW], ShardMark("old", 40), ShardMark("new", GENERATION_SIZE + 5))

    assert found == [PositionRange(3, "old", 40, 90), PositionRange(3, "new", GENERATION_SIZE, GENERATION_SIZE + 5)]


def test_trimmed_generations_that_were_not_read_are_missing() -> None:
    middle, last = (
        ShardSpan(3, "middle", GENERATION_SIZE + 30, GENERATION_SIZE + 30),
        ShardSpan(3, "last", 2 * GENERATION_SIZE + 4, 2 * GENERATION_SIZE + 9),
    )

    found = ranges_between(3, [GONE, middle, last], ShardMark("old", 90), ShardMark("last", 2 * GENERATION_SIZE + 6))

    assert found == [
        PositionRange(3, "middle", GENERATION_SIZE, GENERATION_SIZE + 30),
        PositionRange(3, "last", 2 * GENERATION_SIZE, 2 * GENERATION_SIZE + 6),
    ]


def test_start_at_the_earliest_mark_misses_nothing() -> None:
    trimmed = ShardSpan(3, "new", GENERATION_SIZE + 20, GENERATION_SIZE + 50)

    assert earliest({3: [GONE, trimmed]}) == {3: ShardMark("new", GENERATION_SIZE + 20)}
    assert ranges_between(3, [GONE, trimmed], ShardMark("", 0), ShardMark("new", GENERATION_SIZE + 25)) == [
        PositionRange(3, "new", GENERATION_SIZE + 20, GENERATION_SIZE + 25)
    ]


def test_empty_generation_between_known_ones_is_not_a_loss() -> None:
    last = ShardSpan(3, "last", 2 * GENERATION_SIZE + 4, 2 * GENERATION_SIZE + 9)

    assert ranges_between(3, [GONE, last], ShardMark("empty", GENERATION_SIZE), ShardMark("last", 2 * GENERATION_SIZE + 6)) == [
        PositionRange(3, "last", 2 * GENERATION_SIZE, 2 * GENERATION_SIZE + 6)
    ]


def test_shard_that_repeats_positions_is_a_loss() -> None:
    assert [positions.replaced for positions in ranges_between(3, [OLD], ShardMark("old", 95), ShardMark("old", 90))] == [True]


def test_mark_before_all_rows_starts_at_the_oldest_row() -> None:
    assert ranges_between(3, [OLD, NEW], ShardMark("", 0), ShardMark("new", GENERATION_SIZE)) == [
        PositionRange(3, "old", 10, 90)
    ]


@given(st.integers(10, 90), st.integers(0, 50), st.integers(0, 200))
def test_advance_covers_the_given_number_of_rows(start: int, end: int, rows: int) -> None:
    spans, begin, stop = [OLD, NEW], ShardMark("old", start), ShardMark("new", GENERATION_SIZE + end)
    total = sum(positions.rows for positions in ranges_between(3, spans, begin, stop))

    reached = advance(3, spans, begin, stop, rows)

    assert sum(positions.rows for positions in ranges_between(3, spans, begin, reached)) == min(rows, total)
    assert remaining({3: spans}, {3: reached}, {3: stop})[3] == total - min(rows, total)


@given(st.integers(0, 100), st.integers(0, 300), st.integers(1, 40))
def test_split_keeps_rows_and_order(first: int, rows: int, parts: int) -> None:
    found = split(PositionRange(0, "e", first, first + rows), parts)

    assert [position for positions in found for position in range(positions.first, positions.end)] == list(
        range(first, first + rows)
    )
    assert len(found) == max(1, min(parts, rows))
