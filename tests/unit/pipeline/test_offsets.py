"""Marks and pieces: nothing between two marks is read twice, left out or taken for something else."""

import json

from hypothesis import given
from hypothesis import strategies as st

from ropewalk.model.journal import GENERATION_SIZE, ShardMark, ShardSpan
from ropewalk.pipeline.offsets import Piece, advance, between, decode, earliest, encode, remaining, split

GONE = ShardSpan(3, "old", 90, 90)
OLD, NEW = ShardSpan(3, "old", 10, 90), ShardSpan(3, "new", GENERATION_SIZE, GENERATION_SIZE + 50)


def test_an_offset_has_one_spelling_with_shards_in_order_of_number() -> None:
    marks = {10: ShardMark("b", 2), 2: ShardMark("a", 1)}

    assert json.dumps(encode(marks)) == '{"2": {"e": "a", "p": 1}, "10": {"e": "b", "p": 2}}'
    assert decode(encode(marks)) == marks


def test_within_an_epoch_two_marks_are_one_piece_whatever_the_journal_holds() -> None:
    assert between(3, [], ShardMark("old", 5), ShardMark("old", 30)) == [Piece(3, "old", 5, 30)]


def test_an_epoch_is_read_to_its_end_and_the_next_from_its_beginning() -> None:
    found = between(3, [OLD, NEW], ShardMark("old", 80), ShardMark("new", GENERATION_SIZE + 5))

    assert found == [Piece(3, "old", 80, 90), Piece(3, "new", GENERATION_SIZE, GENERATION_SIZE + 5)]


def test_holes_of_damage_do_not_end_an_epoch() -> None:
    spans = [ShardSpan(3, "old", 0, 20), ShardSpan(3, "old", 30, 90), NEW]

    assert between(3, spans, ShardMark("old", 10), ShardMark("new", GENERATION_SIZE)) == [Piece(3, "old", 10, 90)]


def test_an_end_that_damage_took_is_part_of_its_epoch() -> None:
    spans = [ShardSpan(3, "old", 0, 60), ShardSpan(3, "old", 90, 90), NEW]

    assert between(3, spans, ShardMark("old", 10), ShardMark("new", GENERATION_SIZE)) == [Piece(3, "old", 10, 90)]
    assert between(3, spans, ShardMark("old", 90), ShardMark("new", GENERATION_SIZE)) == []


def test_an_epoch_the_journal_never_had_is_a_loss_of_unknown_size_before_everything_it_has() -> None:
    lost, rest = between(3, [OLD], ShardMark("other", 40), ShardMark("old", 90))

    assert (lost.replaced, lost.first, lost.rows) == (True, 40, 0)
    assert rest == Piece(3, "old", 10, 90)


def test_a_generation_in_which_nothing_happened_is_no_loss_when_it_is_forgotten() -> None:
    assert between(3, [NEW], ShardMark("empty", 0), ShardMark("new", GENERATION_SIZE + 1)) == [
        Piece(3, "new", GENERATION_SIZE, GENERATION_SIZE + 1)
    ]


def test_whoever_finished_a_generation_whose_rows_are_gone_has_lost_nothing() -> None:
    assert between(3, [GONE, NEW], ShardMark("old", 90), ShardMark("new", GENERATION_SIZE + 5)) == [
        Piece(3, "new", GENERATION_SIZE, GENERATION_SIZE + 5)
    ]


def test_whoever_was_in_the_middle_of_it_misses_exactly_the_rest() -> None:
    found = between(3, [GONE, NEW], ShardMark("old", 40), ShardMark("new", GENERATION_SIZE + 5))

    assert found == [Piece(3, "old", 40, 90), Piece(3, "new", GENERATION_SIZE, GENERATION_SIZE + 5)]


def test_whoever_comes_from_the_generation_before_misses_what_is_gone_of_the_next() -> None:
    middle, last = (
        ShardSpan(3, "middle", GENERATION_SIZE + 30, GENERATION_SIZE + 30),
        ShardSpan(3, "last", 2 * GENERATION_SIZE + 4, 2 * GENERATION_SIZE + 9),
    )

    found = between(3, [GONE, middle, last], ShardMark("old", 90), ShardMark("last", 2 * GENERATION_SIZE + 6))

    assert found == [
        Piece(3, "middle", GENERATION_SIZE, GENERATION_SIZE + 30),
        Piece(3, "last", 2 * GENERATION_SIZE, 2 * GENERATION_SIZE + 6),
    ]


def test_whoever_begins_at_the_earliest_has_missed_nothing() -> None:
    trimmed = ShardSpan(3, "new", GENERATION_SIZE + 20, GENERATION_SIZE + 50)

    assert earliest({3: [GONE, trimmed]}) == {3: ShardMark("new", GENERATION_SIZE + 20)}
    assert between(3, [GONE, trimmed], ShardMark("", 0), ShardMark("new", GENERATION_SIZE + 25)) == [
        Piece(3, "new", GENERATION_SIZE + 20, GENERATION_SIZE + 25)
    ]


def test_a_generation_in_which_nothing_happened_is_no_loss_either_among_generations_that_are_known() -> None:
    last = ShardSpan(3, "last", 2 * GENERATION_SIZE + 4, 2 * GENERATION_SIZE + 9)

    assert between(3, [GONE, last], ShardMark("empty", GENERATION_SIZE), ShardMark("last", 2 * GENERATION_SIZE + 6)) == [
        Piece(3, "last", 2 * GENERATION_SIZE, 2 * GENERATION_SIZE + 6)
    ]


def test_a_shard_that_gives_positions_again_is_a_loss() -> None:
    assert [piece.replaced for piece in between(3, [OLD], ShardMark("old", 95), ShardMark("old", 90))] == [True]


def test_a_mark_before_everything_begins_with_what_there_is() -> None:
    assert between(3, [OLD, NEW], ShardMark("", 0), ShardMark("new", GENERATION_SIZE)) == [Piece(3, "old", 10, 90)]


@given(st.integers(10, 90), st.integers(0, 50), st.integers(0, 200))
def test_advancing_covers_exactly_so_many_rows(start: int, end: int, rows: int) -> None:
    spans, begin, stop = [OLD, NEW], ShardMark("old", start), ShardMark("new", GENERATION_SIZE + end)
    total = sum(piece.rows for piece in between(3, spans, begin, stop))

    reached = advance(3, spans, begin, stop, rows)

    assert sum(piece.rows for piece in between(3, spans, begin, reached)) == min(rows, total)
    assert remaining({3: spans}, {3: reached}, {3: stop})[3] == total - min(rows, total)


@given(st.integers(0, 100), st.integers(0, 300), st.integers(1, 40))
def test_a_split_piece_is_the_same_rows_in_the_same_order(first: int, rows: int, parts: int) -> None:
    found = split(Piece(0, "e", first, first + rows), parts)

    assert [position for piece in found for position in range(piece.first, piece.end)] == list(range(first, first + rows))
    assert len(found) == max(1, min(parts, rows))
