"""End to end: published over HTTP at one node, delivered over WebSocket by another, against one node with its own memory."""

import statistics
from contextlib import ExitStack

from benchmarks.cluster.engines import Engine, flags
from benchmarks.load.field import Field
from benchmarks.remote import Remote
from benchmarks.report import Figure, figure, milliseconds
from benchmarks.served import Served
from benchmarks.server import Server
from benchmarks.sizes import Sizes


def measure_nodes(engine: Engine, url: str, sizes: Sizes) -> list[Figure]:
    count, rate = sizes.cluster_paced, sizes.cluster_rate
    rounds, floor_rounds = list[list[float]](), list[list[float]]()
    with ExitStack() as stack:
        field = stack.enter_context(Remote(Field))
        alone = stack.enter_context(Server())
        first, second = (stack.enter_context(Server(*flags(engine, url))) for _ in range(2))
        memory = Served(alone.address, alone.address, field, "memory", 1, sizes.payload)
        cluster = Served(first.address, second.address, field, "cluster", 1, sizes.payload)
        for served in (memory, cluster):
            served.check(count, 1)
            stack.callback(served.close)
        for _ in range(sizes.cluster_rounds):
            floor_rounds.append(memory.pace(count, rate))
            rounds.append(cluster.pace(count, rate))
    details: dict[str, float] = {
        "rate": rate,
        "messages_a_round": count,
        "p99_ms": statistics.median(_percentiles(rounds, 99)),
        "floor_p99_ms": statistics.median(_percentiles(floor_rounds, 99)),
    }
    title = f"HTTP at one node to WebSocket at another with {engine.name}, p50"
    return [figure(f"p{engine.letter}", title, "ms", _percentiles(rounds, 50), _percentiles(floor_rounds, 50), details)]


def _percentiles(rounds: list[list[float]], percentile: int) -> list[float]:
    return [milliseconds(each, percentile) for each in rounds]
