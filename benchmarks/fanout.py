"""Fan-out: one stream, many subscribers, as many deliveries a second as can be.

Time runs from the first request (or the first `send()`) until the last subscriber has the last byte.
"""

import statistics

from benchmarks.pair import Pair, Round
from benchmarks.report import Bar, Figure, figure
from benchmarks.sizes import Sizes

SINGLE_BAR = Bar("ratio", ">=", 0.6)
BATCHED_BAR = Bar("ratio", ">=", 4.0)


def measure_fanout(pair: Pair, sizes: Sizes) -> list[Figure]:
    """One by one, and in each batch size; every kind of round is checked once before it is timed."""
    batches = (1, *sizes.batches)
    # one by one comes last: its frames are the floor's
    checked = {batch: pair.check(_count(sizes, batch), batch) for batch in reversed(batches)}
    floor: list[Round] = []
    server: dict[int, list[Round]] = {batch: [] for batch in batches}
    for _ in range(sizes.fanout_rounds):
        floor.append(pair.send(sizes.single_messages))
        for batch in batches:
            server[batch].append(pair.serve(_count(sizes, batch), batch))
    return [_figure(pair, sizes, batch, checked[batch], server[batch], floor) for batch in batches]


def _count(sizes: Sizes, batch: int) -> int:
    return sizes.single_messages if batch == 1 else sizes.batched_messages


def _figure(pair: Pair, sizes: Sizes, batch: int, checked: int, server: list[Round], floor: list[Round]) -> Figure:
    messages = _count(sizes, batch)
    details: dict[str, float] = {
        "subscribers": pair.subscribers,
        "batch": batch,
        "messages_a_round": messages,
        "deliveries_a_round": messages * pair.subscribers,
        "deliveries_checked": checked,
        # other processes affect wall-clock rates, and hardly affect CPU time
        "cpu_us_a_delivery": statistics.median(found.cost for found in server),
        "floor_cpu_us_a_delivery": statistics.median(found.cost for found in floor),
    }
    way, bar = (f"batches of {batch}", BATCHED_BAR) if batch > 1 else ("one by one", SINGLE_BAR)
    title = f"fan-out to {pair.subscribers:,}, {way}"
    key = f"b{batch}" if batch > 1 else "a"
    return figure(key, title, "deliveries/s", [found.rate for found in server], [found.rate for found in floor], details, bar)
