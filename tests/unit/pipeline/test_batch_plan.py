"""Splitting a batch into tasks by size, deterministically."""

from itertools import chain

from ropewalk.pipeline.batch_plan import Load, plan
from ropewalk.pipeline.offsets import Piece
from ropewalk.pipeline.options import BatchLimits

PIECES = [Piece(0, "a", 0, 1000), Piece(1, "b", 50, 60)]
SHARDS = [Piece(shard, "e", 0, 100) for shard in range(16)]


def rows(loads: list[Load]) -> list[int]:
    return [sum(piece.rows for piece in load) for load in loads]


def test_small_batch_is_one_task() -> None:
    assert plan(PIECES, BatchLimits()) == [tuple(PIECES)]


def test_shards_share_tasks_evenly_and_in_order() -> None:
    planned = plan(SHARDS, BatchLimits(partition_rows=450))

    assert rows(planned) == [400, 400, 400, 400]
    assert list(chain(*planned)) == SHARDS


def test_large_shard_has_its_own_task() -> None:
    assert plan(PIECES, BatchLimits(partition_rows=600)) == [(PIECES[0],), (PIECES[1],)]


def test_partition_rows_0_gives_every_shard_a_task() -> None:
    assert plan(PIECES, BatchLimits(partition_rows=0)) == [(piece,) for piece in PIECES]


def test_rows_of_a_task_are_limited() -> None:
    assert rows(plan(PIECES, BatchLimits(max_partition_rows=400))) == [333, 333, 334, 10]


def test_minimum_number_of_tasks_splits_large_pieces() -> None:
    planned = plan(PIECES, BatchLimits(min_partitions=8))

    assert len(planned) >= 8
    assert [load for load in planned if load[0].shard == 1] == [(Piece(1, "b", 50, 60),)]


def test_loss_of_unknown_size_is_planned() -> None:
    lost = Piece(2, "c", 5, 5, replaced=True)

    assert plan([lost], BatchLimits(min_partitions=4)) == [(lost,)]
    assert plan([lost], BatchLimits()) == [(lost,)]
    assert list(chain(*plan([*PIECES, lost], BatchLimits(partition_rows=100)))) == [*PIECES, lost]
