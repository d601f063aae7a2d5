"""Publications acknowledged a second: many publishers at once, each with one publication on its way."""

import asyncio
import secrets
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


class Way(Struct, frozen=True):
    """`key` ends the keys of its figures. `keyed`: every publication has a uid of its own."""

    key: str
    title: str
    streams: int
    keyed: bool = False


KEYED = Way("u", "one stream, with uids", 1, keyed=True)


async def measure_publishing(engine: Engine, nodes: Nodes, bare: Side, sizes: Sizes) -> list[Figure]:
    ways = Way("1", "one stream", 1), Way("m", f"{sizes.cluster_streams} streams", sizes.cluster_streams), KEYED
    found = [await _measure(engine, nodes, bare, sizes, way) for way in ways]
    registered = await nodes.registered(_names(sizes.cluster_streams))
    if registered != nodes.published:
        raise AssertionError(f"{nodes.published} publications were acknowledged and {registered} are registered")
    return found


async def _measure(engine: Engine, nodes: Nodes, bare: Side, sizes: Sizes, way: Way) -> Figure:
    """The first round of each is a warm-up."""
    ours, floor = list[Round](), list[Round]()
    for counted in (False, *[True] * sizes.cluster_rounds):
        for side, rounds in ((bare, floor), (nodes, ours)):
            done = await _round(engine, side, sizes, way)
            if counted:
                rounds.append(done)
    publishers = engine.publishers(sizes)
    details: dict[str, float] = {
        "publishers": publishers,
        "streams": way.streams,
        "payload": sizes.row_bytes,
        "messages_a_round": _each(publishers, sizes) * publishers,
        # other processes affect wall-clock rates, and hardly affect CPU time
        "cpu_us_a_message": statistics.median(one.cost for one in ours),
        "floor_cpu_us_a_message": statistics.median(one.cost for one in floor),
    }
    title = f"publish with {engine.name}, {publishers} publishers at {way.title}"
    bar = engine.bar if way.key == "1" else None
    rates, floor_rates = [one.rate for one in ours], [one.rate for one in floor]
    return figure(f"n{engine.letter}{way.key}", title, "messages/s", rates, floor_rates, details, bar)


async def _round(engine: Engine, side: Side, sizes: Sizes, way: Way) -> Round:
    publishers, names, payload = engine.publishers(sizes), _names(way.streams), b'"' + b"x" * (sizes.row_bytes - 2) + b'"'
    count = _each(publishers, sizes)

    async def publish(stream: str) -> None:
        for _ in range(count):
            await side.publish(stream, payload, secrets.token_urlsafe(16) if way.keyed else "")

    began, spent = time.perf_counter(), time.process_time()
    await asyncio.gather(*(publish(names[number % way.streams]) for number in range(publishers)))
    messages = publishers * count
    return Round(messages / (time.perf_counter() - began), (time.process_time() - spent) * 1e6 / messages)


def _each(publishers: int, sizes: Sizes) -> int:
    return sizes.cluster_messages // publishers


def _names(streams: int) -> list[str]:
    return [f"bench{number}" for number in range(streams)]
