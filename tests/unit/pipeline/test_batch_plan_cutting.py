"""A batch of limited size ends at the same time in all shards."""

import random
from collections.abc import Mapping, Sequence
from functools import partial

import pytest

from ropewalk.pipeline.batch_plan import FULL, oldest

Journal = Mapping[int, Sequence[int]]


def time_in(journal: Journal, shard: int, row: int) -> int:
    return journal[shard][row]


def batches(journal: Journal, limit: int) -> list[dict[int, Sequence[int]]]:
    """Reads a backlog in batches. Returns the times of the rows of each batch, by shard."""
    done = dict.fromkeys(journal, 0)
    found = []
    while any(done[shard] < len(times) for shard, times in journal.items()):
        lags = {shard: len(times) - done[shard] for shard, times in journal.items()}
        left = {shard: times[done[shard] :] for shard, times in journal.items()}
        taken = oldest(lags, limit, partial(time_in, left))
        assert 0 < sum(taken.values()) <= limit
        assert all(0 <= rows <= lags[shard] for shard, rows in taken.items())
        found.append({shard: journal[shard][done[shard] : done[shard] + rows] for shard, rows in taken.items()})
        done = {shard: done[shard] + rows for shard, rows in taken.items()}
    return found


def times(batch: Mapping[int, Sequence[int]]) -> list[int]:
    return [time for own in batch.values() for time in own]


SHAPES: dict[str, Journal] = {
    "same rate": {0: range(1000), 1: range(1000)},
    "one shard 100 times as dense": {0: range(0, 100_000, 100), 1: range(10_000), 2: []},
    "one after another": {0: range(500), 1: range(500, 1500), 2: range(1500, 1600)},
    "few old rows beside many new ones": {0: range(300), 1: range(1000, 21_000)},
    "all at one time": {0: [7] * 500, 1: [7] * 300},
    "in bursts": {shard: sorted(second * 1000 for second in range(20) for _ in range(37)) for shard in range(5)},
    "at random": {
        shard: sorted(random.Random(shard).randrange(50_000) for _ in range(10 ** (shard % 4))) for shard in range(16)
    },
}


def test_batches_are_in_order_of_time_across_shards(subtests: pytest.Subtests) -> None:
    for shape in SHAPES:
        for limit in [1, 7, 400]:
            with subtests.test(shape=shape, limit=limit):
                if limit == 1 and sum(map(len, SHAPES[shape].values())) > 3000:
                    limit = 2
                newest = 0
                found = batches(SHAPES[shape], limit)
                for batch in found:
                    assert min(times(batch)) >= newest
                    newest = max(times(batch))
                assert {shard: sum(len(batch[shard]) for batch in found) for shard in SHAPES[shape]} == {
                    shard: len(own) for shard, own in SHAPES[shape].items()
                }


def test_batches_of_a_backlog_are_full(subtests: pytest.Subtests) -> None:
    for shape in SHAPES:
        with subtests.test(shape=shape):
            sizes = [len(times(batch)) for batch in batches(SHAPES[shape], 400)]

            assert all(size >= FULL * 400 for size in sizes[:-1])


def test_times_are_not_read_if_all_rows_fit_or_one_shard_has_rows() -> None:
    assert oldest({0: 2, 1: 1}, 3, lambda _shard, _row: pytest.fail("reads a time")) == {0: 2, 1: 1}
    assert oldest({0: 9, 1: 0}, 3, lambda _shard, _row: pytest.fail("reads a time")) == {0: 3, 1: 0}


def test_few_times_are_read_if_shards_keep_pace() -> None:
    read = set()

    def time(shard: int, row: int) -> int:
        read.add((shard, row))
        return row * 10 + shard

    oldest(dict.fromkeys(range(16), 1_000_000), 100_000, time)

    assert len(read) <= 16 * 20


def test_decreasing_times_still_fill_batches() -> None:
    jumping = random.Random(3)
    journal = {shard: [jumping.randrange(100) for _ in range(500)] for shard in range(4)}

    assert sum(len(times(batch)) for batch in batches(journal, 50)) == 2000
