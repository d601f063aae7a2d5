"""A batch of limited size is cut at one time in all shards."""

import random
from collections.abc import Mapping, Sequence
from functools import partial

import pytest

from ropewalk.pipeline.cutting import FULL, oldest

Journal = Mapping[int, Sequence[int]]


def time_in(journal: Journal, shard: int, row: int) -> int:
    return journal[shard][row]


def batches(journal: Journal, limit: int) -> list[dict[int, Sequence[int]]]:
    """A backlog, worked off: the times of each batch's rows, by shard."""
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
    "at the same pace": {0: range(1000), 1: range(1000)},
    "one hundred times as dense": {0: range(0, 100_000, 100), 1: range(10_000), 2: []},
    "one after another": {0: range(500), 1: range(500, 1500), 2: range(1500, 1600)},
    "few old rows beside many new ones": {0: range(300), 1: range(1000, 21_000)},
    "all of one moment": {0: [7] * 500, 1: [7] * 300},
    "in bursts": {shard: sorted(second * 1000 for second in range(20) for _ in range(37)) for shard in range(5)},
    "by chance": {
        shard: sorted(random.Random(shard).randrange(50_000) for _ in range(10 ** (shard % 4))) for shard in range(16)
    },
}


@pytest.mark.parametrize("limit", [1, 7, 400])
@pytest.mark.parametrize("shape", SHAPES)
def test_no_row_is_left_behind_that_is_older_than_one_that_was_taken(shape: str, limit: int) -> None:
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


@pytest.mark.parametrize("shape", SHAPES)
def test_a_backlog_takes_full_batches_however_it_lies(shape: str) -> None:
    sizes = [len(times(batch)) for batch in batches(SHAPES[shape], 400)]

    assert all(size >= FULL * 400 for size in sizes[:-1])


def test_what_fits_and_what_is_of_one_shard_is_taken_without_asking_for_times() -> None:
    assert oldest({0: 2, 1: 1}, 3, lambda _shard, _row: pytest.fail("asked")) == {0: 2, 1: 1}
    assert oldest({0: 9, 1: 0}, 3, lambda _shard, _row: pytest.fail("asked")) == {0: 3, 1: 0}


def test_few_rows_are_asked_for_their_time_where_shards_keep_pace() -> None:
    asked = set()

    def time(shard: int, row: int) -> int:
        asked.add((shard, row))
        return row * 10 + shard

    oldest(dict.fromkeys(range(16), 1_000_000), 100_000, time)

    assert len(asked) <= 16 * 20


def test_times_that_go_back_end_no_batch_without_rows() -> None:
    jumping = random.Random(3)
    journal = {shard: [jumping.randrange(100) for _ in range(500)] for shard in range(4)}

    assert sum(len(times(batch)) for batch in batches(journal, 50)) == 2000
