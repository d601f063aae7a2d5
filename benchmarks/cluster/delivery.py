"""From publish to deliver, one message after the other: at the other node, or at the subscriber of the bare client."""

import asyncio
import statistics
import time

from benchmarks.cluster.engines import MEMORY, Engine
from benchmarks.cluster.sides import Nodes, Side
from benchmarks.report import Bar, Figure, figure, milliseconds
from benchmarks.sizes import Sizes

BAR = Bar("ratio", "<=", 3.0)
STREAM = "delivery"
TIMEOUT = 60.0


class Trips:
    """Publishes and receives."""

    def __init__(self, side: Side, payload: int) -> None:
        self._side = side
        self._payload = payload
        self._count = 0
        self._expected = b""
        self._heard: asyncio.Future[float] | None = None

    async def open(self) -> None:
        await self._side.listen(STREAM, self._receive)

    async def round(self, count: int) -> list[float]:
        """Seconds of each."""
        async with asyncio.timeout(TIMEOUT):
            return [await self._one() for _ in range(count)]

    async def _one(self) -> float:
        self._count += 1
        self._expected = b'"%0*d"' % (self._payload - 2, self._count)
        heard: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._heard = heard
        began = time.perf_counter()
        # it may be delivered before it is acknowledged
        await self._side.send(STREAM, self._expected)
        return await heard - began

    def _receive(self, payload: bytes) -> None:
        now = time.perf_counter()
        if self._heard is None or self._heard.done() or payload != self._expected:
            raise AssertionError("a message was delivered twice, or another one than was published")
        self._heard.set_result(now)


async def measure_delivery(engine: Engine, nodes: Nodes, bare: Side, sizes: Sizes) -> list[Figure]:
    ours, floor = Trips(nodes, sizes.row_bytes), Trips(bare, sizes.row_bytes)
    for trips in (ours, floor):
        await trips.open()
        await trips.round(sizes.cluster_trips // 10)
    rounds, floor_rounds = list[list[float]](), list[list[float]]()
    for _ in range(sizes.cluster_rounds):
        floor_rounds.append(await floor.round(sizes.cluster_trips))
        rounds.append(await ours.round(sizes.cluster_trips))
    details: dict[str, float] = {
        "payload": sizes.row_bytes,
        "messages_a_round": sizes.cluster_trips,
        "p99_us": statistics.median(_microseconds(rounds, 99)),
        "floor_p99_us": statistics.median(_microseconds(floor_rounds, 99)),
    }
    where, bar = ("in memory", None) if engine is MEMORY else (f"at another node with {engine.name}", BAR)
    title = f"publish to deliver {where}, p50"
    medians, floor_medians = _microseconds(rounds, 50), _microseconds(floor_rounds, 50)
    return [figure(f"o{engine.letter}", title, "µs", medians, floor_medians, details, bar)]


def _microseconds(rounds: list[list[float]], percentile: int) -> list[float]:
    return [milliseconds(each, percentile) * 1000 for each in rounds]
