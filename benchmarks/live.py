"""The live parts: the server against the bare socket, from publisher to subscribers."""

from collections.abc import Sequence

from benchmarks.connect import measure_connect
from benchmarks.fanout import measure_fanout
from benchmarks.floor import Floor
from benchmarks.latency import measure_latency
from benchmarks.load.field import Field
from benchmarks.memory import measure_memory
from benchmarks.pair import Pair
from benchmarks.remote import Remote
from benchmarks.report import Figure
from benchmarks.server import Server
from benchmarks.sizes import Sizes
from benchmarks.storm import measure_storm


def measure_live(parts: Sequence[str], sizes: Sizes) -> list[Figure]:
    """A fresh server for each kind of state; pair rounds share one, so that floor and server alternate on the same sockets."""
    figures: list[Figure] = []
    with Remote(Floor) as floor, Remote(Field) as field:
        if "fanout" in parts or "latency" in parts:
            figures += _measure_pair(parts, floor, field, sizes)
        if "memory" in parts:
            with Server() as server:
                figures += measure_memory(server, field, sizes)
        if "storm" in parts:
            with Server("--history_limit", "10000") as server:
                figures += measure_storm(server, floor, field, sizes)
        if "connect" in parts:
            with Server() as server:
                figures += measure_connect(server, field, sizes)
    return figures


def _measure_pair(parts: Sequence[str], floor: Remote[Floor], field: Remote[Field], sizes: Sizes) -> list[Figure]:
    figures: list[Figure] = []
    with Server() as server:
        pair = Pair(server, floor, field, sizes)
        if "fanout" in parts:
            figures += measure_fanout(pair, sizes)
        if "latency" in parts:
            figures += measure_latency(pair, sizes)
        pair.close()
    return figures
