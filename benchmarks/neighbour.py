"""A small stream beside a large one: its latency while the server writes to very many subscribers of the other, compared with
its latency alone."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.load.field import Field
from benchmarks.remote import Remote
from benchmarks.report import Bar, Figure, figure, milliseconds
from benchmarks.served import Served
from benchmarks.server import Server
from benchmarks.sizes import Sizes

BAR = Bar("value", "<=", 10.0)


def measure_neighbour(sizes: Sizes) -> list[Figure]:
    count, rate = sizes.neighbour_messages, sizes.neighbour_rate
    alone: list[list[float]] = []
    beside: list[list[float]] = []
    rates: list[float] = []
    with Remote(Field) as near, Remote(Field) as far, Server() as server:
        at = server.address
        small = Served(at, at, near, "small", sizes.neighbour_subscribers, sizes.payload, "small")
        large = Served(at, at, far, "large", sizes.crowd_subscribers, sizes.payload, "large")
        large.check(1, 1)
        small.check(count, 1)
        for _ in range(sizes.neighbour_rounds):
            alone.append(small.pace(count, rate))
            with _paced(large, round(count / rate * sizes.crowd_rate), sizes.crowd_rate):
                beside.append(small.pace(count, rate))
            rates.append(sizes.crowd_messages * large.subscribers / large.publish(sizes.crowd_messages, 1))
        small.close()
        large.close()
    details: dict[str, float] = {
        "subscribers": small.subscribers,
        "rate": rate,
        "crowd_subscribers": large.subscribers,
        "crowd_rate": sizes.crowd_rate,
        "crowd_deliveries_a_second": sorted(rates)[len(rates) // 2],
    }
    title = f"publish to last of {small.subscribers}, beside {large.subscribers:,} at {sizes.crowd_rate:g}/s, p"
    return [
        figure(
            f"u{percentile}",
            f"{title}{percentile}",
            "ms",
            [milliseconds(found, percentile) for found in beside],
            [milliseconds(found, percentile) for found in alone],
            details,
            BAR if percentile == 99 else None,
        )
        for percentile in (50, 99)
    ]


@contextmanager
def _paced(served: Served, count: int, rate: float) -> Iterator[None]:
    """Publishes that many beside what happens meanwhile."""
    pacing = threading.Thread(target=served.pace, args=(count, rate), daemon=True)
    pacing.start()
    yield
    pacing.join()
