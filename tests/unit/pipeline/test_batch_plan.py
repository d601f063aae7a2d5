"""A batch is cut into tasks by size, the same way every time."""

from itertools import chain

from ropewalk.pipeline.batch_plan import Load, plan
from ropewalk.pipeline.offsets import Piece
from ropewalk.pipeline.options import BatchLimits

PIECES = [Piece(0, "a", 0, 1000), Piece(1, "b", 50, 60)]
SHARDS = [Piece(shard, "e", 0, 100) for shard in range(16)]


def rows(loads: list[Load]) -> list[int]:
    return [sum(piece.rows for piece in load) for load in loads]


def test_what_is_small_goes_into_one_task() -> None:
    assert plan(PIECES, BatchLimits()) == [tuple(PIECES)]


def test_shards_share_tasks_evenly_and_in_order() -> None:
    planned = plan(SHARDS, BatchLimits(partition_rows=450))

    assert rows(planned) == [400, 400, 400, 400]
    assert list(chain(*planned)) == SHARDS


def test_a_large_shard_does_not_make_others_wait() -> None:
    assert plan(PIECES, BatchLimits(partition_rows=600)) == [(PIECES[0],), (PIECES[1],)]


def test_when_told_so_every_shard_has_a_task() -> None:
    assert plan(PIECES, BatchLimits(partition_rows=0)) == [(piece,) for piece in PIECES]


def test_no_task_has_more_rows_than_allowed() -> None:
    assert rows(plan(PIECES, BatchLimits(max_partition_rows=400))) == [333, 333, 334, 10]


def test_there_are_at_least_as_many_tasks_as_asked_for_and_large_pieces_give_most() -> None:
    planned = plan(PIECES, BatchLimits(min_partitions=8))

    assert len(planned) >= 8
    assert [load for load in planned if load[0].shard == 1] == [(Piece(1, "b", 50, 60),)]


def test_a_loss_of_unknown_size_is_read_too() -> None:
    lost = Piece(2, "c", 5, 5, replaced=True)

    assert plan([lost], BatchLimits(min_partitions=4)) == [(lost,)]
    assert plan([lost], BatchLimits()) == [(lost,)]
    assert list(chain(*plan([*PIECES, lost], BatchLimits(partition_rows=100)))) == [*PIECES, lost]
