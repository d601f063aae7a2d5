"""Latency at a fixed rate: from the moment a message is due until the last of its subscribers has it.

Counting from when it was due keeps the waits of a late publisher in the figure.
"""

from benchmarks.pair import Pair
from benchmarks.report import Figure, figure, milliseconds
from benchmarks.sizes import Sizes


def measure_latency(pair: Pair, sizes: Sizes) -> list[Figure]:
    """The median and the 99th percentile of each round."""
    count, rate = sizes.latency_messages, sizes.latency_rate
    pair.check(count, 1)
    server: list[list[float]] = []
    floor: list[list[float]] = []
    for _ in range(sizes.latency_rounds):
        floor.append(pair.send_paced(count, rate))
        server.append(pair.serve_paced(count, rate))
    details: dict[str, float] = {"subscribers": pair.subscribers, "rate": rate, "messages_a_round": count}
    return [_figure(pair, percentile, server, floor, details, rate) for percentile in (50, 99)]


def _figure(
    pair: Pair, percentile: int, server: list[list[float]], floor: list[list[float]], details: dict[str, float], rate: float
) -> Figure:
    title = f"publish to last of {pair.subscribers:,} at {rate:g}/s, p{percentile}"
    rounds = [milliseconds(latencies, percentile) for latencies in server]
    return figure(f"d{percentile}", title, "ms", rounds, [milliseconds(latencies, percentile) for latencies in floor], details)
