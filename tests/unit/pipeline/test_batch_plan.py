"""Splitting a batch into tasks by size, deterministically."""

from itertools import chain

from ropewalk.pipeline.batch_plan import TaskRanges, plan
from ropewalk.pipeline.offsets import PositionRange
from ropewalk.pipeline.options import BatchLimits

RANGES = [PositionRange(0, "a", 0, 1000), PositionRange(1, "b", 50, 60)]
SHARDS = [PositionRange(shard, "e", 0, 100) for shard in range(16)]


def rows(tasks: list[TaskRanges]) -> list[int]:
    return [sum(positions.rows for positions in ranges) for ranges in tasks]


def test_small_batch_is_one_task() -> None:
    assert plan(RANGES, BatchLimits()) == [tuple(RANGES)]


def test_shards_share_tasks_evenly_and_in_order() -> None:
    planned = plan(SHARDS, BatchLimits(partition_rows=450))

    assert rows(planned) == [400, 400, 400, 400]
    assert list(chain(*planned)) == SHARDS


def test_large_shard_has_its_own_task() -> None:
    assert plan(RANGES, BatchLimits(partition_rows=600)) == [(RANGES[0],), (RANGES[1],)]


def test_partition_rows_0_gives_every_shard_a_task() -> None:
    assert plan(RANGES, BatchLimits(partition_rows=0)) == [(positions,) for positions in RANGES]


def test_rows_of_a_task_are_limited() -> None:
    assert rows(plan(RANGES, BatchLimits(max_partition_rows=400))) == [333, 333, 334, 10]


def test_minimum_number_of_tasks_splits_large_pieces() -> None:
    planned = plan(RANGES, BatchLimits(min_partitions=8))

    assert len(planned) >= 8
    assert [ranges for ranges in planned if ranges[0].shard == 1] == [(PositionRange(1, "b", 50, 60),)]


def test_loss_of_unknown_size_is_planned() -> None:
    lost = PositionRange(2, "c", 5, 5, replaced=True)

    assert plan([lost], BatchLimits(min_partitions=4)) == [(lost,)]
    assert plan([lost], BatchLimits()) == [(lost,)]
    assert list(chain(*plan([*RANGES, lost], BatchLimits(partition_rows=100)))) == [*RANGES, lost]
