"""Two worker processes beside one: what a delivery costs then, and how much later a message comes that passes between them.

Subscribers, publisher and both servers share the cores, so deliveries per second do not show how the server scales with cores.
The CPU time of all its processes does.
"""

import statistics
from collections.abc import Sequence

from benchmarks.load.field import Field
from benchmarks.remote import Remote
from benchmarks.report import Bar, Figure, figure, milliseconds
from benchmarks.served import Served
from benchmarks.server import Server
from benchmarks.sizes import Sizes

WORKERS = 2
COST_BAR = Bar("ratio", "<=", 1.15)
DELAY_BAR = Bar("value", "<=", 0.3)


class Side:
    """A server and its subscribers."""

    def __init__(self, server: Server, field: Remote[Field], crowd: str, subscribers: int, payload: int) -> None:
        self._server = server
        self.served = Served(server.address, server.address, field, crowd, subscribers, payload)
        self.rates: list[float] = []
        self.costs: list[float] = []
        self.delays: list[float] = []

    def round(self, count: int) -> None:
        before = self._server.usage().processor
        seconds = self.served.publish(count, 1)
        deliveries = count * self.served.subscribers
        self.rates.append(deliveries / seconds)
        self.costs.append((self._server.usage().processor - before) * 1e6 / deliveries)

    def pace(self, count: int, rate: float) -> None:
        self.delays.append(milliseconds(self.served.pace(count, rate), 50))


def measure_workers(sizes: Sizes) -> list[Figure]:
    with Remote(Field) as field, Server() as single, Server("--workers", str(WORKERS)) as several:
        figures = _deliveries(single, several, field, sizes)
        return [*figures, _delay(single, several, field, sizes)]


def _deliveries(single: Server, several: Server, field: Remote[Field], sizes: Sizes) -> list[Figure]:
    sides = _sides(single, several, field, sizes.subscribers, sizes.payload)
    one, two = sides
    for side in sides:
        side.served.check(sizes.single_messages, 1)
    for _ in range(sizes.fanout_rounds):
        for side in sides:
            side.round(sizes.single_messages)
    details: dict[str, float] = {
        "subscribers": sizes.subscribers,
        "messages_a_round": sizes.single_messages,
        "workers": WORKERS,
    }
    _close(sides)
    title = f"fan-out to {sizes.subscribers:,} on {WORKERS} workers"
    return [
        figure("wc", f"{title}, all processes, a delivery", "µs of CPU", two.costs, one.costs, details, COST_BAR),
        figure("wr", f"{title}, load on the same cores", "deliveries/s", two.rates, one.rates, details),
    ]


def _delay(single: Server, several: Server, field: Remote[Field], sizes: Sizes) -> Figure:
    """Latency to the last of a few subscribers on both workers: the difference between two workers and one."""
    sides = _sides(single, several, field, sizes.worker_subscribers, sizes.payload)
    one, two = sides
    for side in sides:
        side.served.check(sizes.latency_messages, 1)
    for _ in range(sizes.latency_rounds):
        for side in sides:
            side.pace(sizes.latency_messages, sizes.latency_rate)
    details: dict[str, float] = {
        "subscribers": sizes.worker_subscribers,
        "rate": sizes.latency_rate,
        "p50_ms": statistics.median(two.delays),
        "p50_ms_one_worker": statistics.median(one.delays),
    }
    _close(sides)
    added = [late - soon for late, soon in zip(two.delays, one.delays, strict=True)]
    title = f"publish to last of {sizes.worker_subscribers} at {sizes.latency_rate:g}/s, p50: {WORKERS} workers add"
    return figure("wl", title, "ms", added, one.delays, details, DELAY_BAR)


def _sides(single: Server, several: Server, field: Remote[Field], subscribers: int, payload: int) -> tuple[Side, Side]:
    return Side(single, field, "one", subscribers, payload), Side(several, field, "two", subscribers, payload)


def _close(sides: Sequence[Side]) -> None:
    for side in sides:
        side.served.close()
