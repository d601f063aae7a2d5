"""Publications acknowledged a second: many publishers at once, each with one publication on its way."""

import asyncio
import statistics
import time

from msgspec import Struct

from benchmarks.cluster.engines import Engine
from benchmarks.cluster.sides import Nodes, Side
from benchmarks.report import Figure, figure
from benchmarks.sizes import Sizes


class Round(Struct, frozen=True):
    """Publications a second, and microseconds of processor time that one took in the process of the publishers."""

    rate: float
    cost: float


async def measure_publishing(engine: Engine, nodes: Nodes, bare: Side, sizes: Sizes) -> list[Figure]:
    found = [await _measure(engine, nodes, bare, sizes, count) for count in (1, sizes.cluster_streams)]
    registered = await nodes.registered(_names(sizes.cluster_streams))
    if registered != nodes.published:
        raise AssertionError(f"{nodes.published} publications were acknowledged and {registered} are registered")
    return found


async def _measure(engine: Engine, nodes: Nodes, bare: Side, sizes: Sizes, streams: int) -> Figure:
    """One round of each is not counted: the first pays for what is made only once."""
    ours, floor = list[Round](), list[Round]()
    for counted in (False, *[True] * sizes.cluster_rounds):
        for side, rounds in ((bare, floor), (nodes, ours)):
            done = await _round(engine, side, sizes, streams)
            if counted:
                rounds.append(done)
    publishers = engine.publishers(sizes)
    details: dict[str, float] = {
        "publishers": publishers,
        "streams": streams,
        "payload": sizes.row_bytes,
        "messages_a_round": _each(publishers, sizes) * publishers,
        # wall-clock rates suffer from whatever else runs on the machine; processor time hardly does
        "cpu_us_a_message": statistics.median(one.cost for one in ours),
        "floor_cpu_us_a_message": statistics.median(one.cost for one in floor),
    }
    where = "one stream" if streams == 1 else f"{streams} streams"
    title = f"publish with {engine.name}, {publishers} publishers at {where}"
    bar = engine.bar if streams == 1 or engine.at_all_streams else None
    rates = [one.rate for one in ours], [one.rate for one in floor]
    return figure(f"n{engine.letter}{streams}", title, "messages/s", *rates, details, bar)


async def _round(engine: Engine, side: Side, sizes: Sizes, streams: int) -> Round:
    publishers, names, payload = engine.publishers(sizes), _names(streams), b'"' + b"x" * (sizes.row_bytes - 2) + b'"'
    count = _each(publishers, sizes)

    async def publish(stream: str) -> None:
        for _ in range(count):
            await side.publish(stream, payload)

    began, spent = time.perf_counter(), time.process_time()
    await asyncio.gather(*(publish(names[number % streams]) for number in range(publishers)))
    messages = publishers * count
    return Round(messages / (time.perf_counter() - began), (time.process_time() - spent) * 1e6 / messages)


def _each(publishers: int, sizes: Sizes) -> int:
    return sizes.cluster_messages // publishers


def _names(streams: int) -> list[str]:
    return [f"bench{number}" for number in range(streams)]
