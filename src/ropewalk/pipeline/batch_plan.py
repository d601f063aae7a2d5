"""How a batch is cut into tasks. Pure, and the same for the same marks: a batch that is run again reads what it read before."""

from collections.abc import Callable, Mapping, Sequence

from ropewalk.pipeline.offsets import PositionRange, split
from ropewalk.pipeline.options import BatchLimits

TaskRanges = tuple[PositionRange, ...]
"""What one task reads, in order."""


def plan(ranges: Sequence[PositionRange], batch_limits: BatchLimits) -> list[TaskRanges]:
    """At least `min_partitions` tasks, none of more than `max_partition_rows`; without these limits, tasks share ranges."""
    total = sum(positions.rows for positions in ranges)
    if batch_limits.partition_rows and not batch_limits.min_partitions and not batch_limits.max_partition_rows:
        return _shared(ranges, total, max(1, -(-total // batch_limits.partition_rows)))
    return [(part,) for positions in ranges for part in split(positions, _parts(positions, total, batch_limits))]


def _parts(positions: PositionRange, total: int, batch_limits: BatchLimits) -> int:
    by_rows = -(-positions.rows // batch_limits.max_partition_rows) if batch_limits.max_partition_rows else 1
    # Rounded up, so that small ranges do not eat up what the large ones need to reach the minimum.
    by_number = -(-positions.rows * batch_limits.min_partitions // total) if total else 1
    return max(by_rows, by_number, 1)


def _shared(ranges: Sequence[PositionRange], total: int, count: int) -> list[TaskRanges]:
    """A task costs tens of milliseconds before its first row, so use few tasks of about equal size."""
    tasks: dict[int, list[PositionRange]] = {}
    before = 0
    for positions in ranges:
        # The task that would contain its middle if all tasks had the same size.
        task = (2 * before + positions.rows) * count // (2 * total + 1)
        tasks.setdefault(task, []).append(positions)
        before += positions.rows
    return [tuple(of_task) for of_task in tasks.values()]


RowCounts = dict[int, int]
Time = Callable[[int, int], int]
"""When a row was registered, in microseconds: shard and number of the row among those that the shard has yet to give."""

FULL = 0.75
"""A batch that is this full is accepted: filling it further would cost too many requests."""

AIM = 0.95
_LEAST, _MOST = 1 / 8, 7 / 8
STEP = 64
_ROUNDS = 100


def oldest(lags: Mapping[int, int], limit: int, time: Time) -> RowCounts:
    """How many rows each shard gives: at least one in all, at most `limit`, and none newer than a row that is left behind.

    Times of a shard should not go back; where they do, the cut is near.
    """
    if sum(lags.values()) <= limit or sum(lag > 0 for lag in lags.values()) == 1:
        return {shard: min(lag, limit) for shard, lag in lags.items()}
    # Up to `least` all shards are cut at one time; behind `most` there is nothing to take.
    least: RowCounts = dict.fromkeys(lags, 0)
    most: RowCounts = {shard: min(lag, limit) for shard, lag in lags.items()}
    for attempt in range(_ROUNDS):
        guesses = _guesses(least, most, limit, hurried=attempt == 0)
        moment = _middle(least, most, {shard: time(shard, row) for shard, row in guesses.items()})
        before = least | {
            shard: _first_since(shard, least[shard], most[shard], row, moment, time) for shard, row in guesses.items()
        }
        if sum(before.values()) > limit:
            most = before
            continue
        if sum(before.values()) >= max(1, FULL * limit):
            return before
        through = {shard: _first_after(shard, before[shard], most[shard], moment, time) for shard in most}
        if sum(through.values()) > limit:
            return _filled(before, through, limit)
        if sum(through.values()) >= max(1, FULL * limit):
            return through
        least = through
    return least if any(least.values()) else _filled(least, most, limit)


def _guesses(least: RowCounts, most: RowCounts, limit: int, hurried: bool) -> RowCounts:
    """Of each shard a row on the way from `least` to `most`, about where the batch is full."""
    left, wide = limit - sum(least.values()), sum(most.values()) - sum(least.values())
    fraction = AIM * left / wide
    if not hurried:  # a guess that was wrong must not be made again: every round takes away a good part
        fraction = min(max(fraction, _LEAST), _MOST)
    return {
        shard: min(least[shard] + int((most[shard] - least[shard]) * fraction), most[shard] - 1)
        for shard in most
        if most[shard] > least[shard]
    }


def _middle(least: RowCounts, most: RowCounts, times: Mapping[int, int]) -> int:
    """The median of some shards' times, each with the weight of the rows it may give."""
    weights = {shard: most[shard] - least[shard] for shard in times}
    weight = 0
    for shard in sorted(times, key=lambda shard: times[shard]):
        weight += weights[shard]
        if 2 * weight >= sum(weights.values()):
            break
    return times[shard]


def _first_since(shard: int, low: int, high: int, near: int, moment: int, time: Time) -> int:
    """The first row of [low, high) that is not from before `moment`. First the surroundings of `near` are searched."""
    step = STEP
    if time(shard, near) < moment:
        low = near + 1
        while low + step < high and time(shard, low + step) < moment:
            low, step = low + step + 1, step * 4
        high = min(high, low + step)
    else:
        high = near
        while high - step > low and time(shard, high - step) >= moment:
            high, step = high - step, step * 4
        low = max(low, high - step)
    return _halved(shard, low, high, moment, time)


def _first_after(shard: int, low: int, high: int, moment: int, time: Time) -> int:
    """Mostly none, or few, are of the moment itself."""
    if low == high or time(shard, low) > moment:
        return low
    return _first_since(shard, low, high, low, moment + 1, time)


def _halved(shard: int, low: int, high: int, moment: int, time: Time) -> int:
    while low < high:
        middle = (low + high) // 2
        if time(shard, middle) < moment:
            low = middle + 1
        else:
            high = middle
    return low


def _filled(before: RowCounts, through: RowCounts, limit: int) -> RowCounts:
    """Rows of one moment: as many as there is room for."""
    taken, left = dict(before), limit - sum(before.values())
    for shard in through:
        more = min(through[shard] - before[shard], left)
        taken[shard] += more
        left -= more
    return taken
