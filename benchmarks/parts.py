"""The parts of a run: names, requirements and order.

Modules that import an extra are imported only when a part that needs it is measured.
"""

from collections.abc import Sequence

from msgspec import Struct

from benchmarks.live import measure_live
from benchmarks.needs import missing
from benchmarks.neighbour import measure_neighbour
from benchmarks.report import Figure
from benchmarks.sizes import Sizes


class Part(Struct, frozen=True):
    """`extras`: packages to install beside the server itself."""

    what: str
    extras: tuple[str, ...] = ()


PARTS = {
    "fanout": Part("a, b: deliveries a second to many subscribers, one by one and in batches"),
    "latency": Part("d: publish to last subscriber at a fixed rate"),
    "neighbour": Part("u: a small stream beside a large one"),
    "memory": Part("c: resident memory of an idle connection"),
    "storm": Part("e: all connections cut, until all are whole again"),
    "publish": Part("q: processor time of publishing one by one over HTTP", ("dev",)),
    "connect": Part("s: processor time of connecting and subscribing with history"),
    "workers": Part("w: two worker processes against one"),
    "journal": Part("f: publishing under each durability", ("journal",)),
    "source": Part("g: journal to Parquet through Spark", ("spark",)),
    "archive": Part("h: journal to archive through Spark", ("spark",)),
    "sink": Part("i: rows from Spark into streams", ("spark",)),
    "queryable": Part("j: publish to queryable in the archive", ("spark",)),
    "cold": Part("k: ranges of old messages out of the archive", ("archive",)),
    "compaction": Part("m: compaction of an archive that grows", ("archive",)),
    "quiet": Part("l: live latency while the archive query runs", ("spark",)),
    "cluster": Part("n, o, p: publishing and delivery with memory, Redis and NATS", ("redis", "enats")),
    "broky": Part("t: push and subscribe over TCP", ("redis", "enats")),
}
_LIVE = ("fanout", "latency", "memory", "storm", "connect")
_WITH_SPARK = tuple(name for name, part in PARTS.items() if "spark" in part.extras)


def left_out(parts: Sequence[str]) -> dict[str, str]:
    """Parts that cannot run here → what to do about it."""
    hints = {name: missing(*PARTS[name].extras) for name in parts}
    return {name: hint for name, hint in hints.items() if hint}


def measure(parts: Sequence[str], sizes: Sizes) -> list[Figure]:
    figures: list[Figure] = []
    if set(parts) & set(_LIVE):
        figures += measure_live(parts, sizes)
    if "neighbour" in parts:
        figures += measure_neighbour(sizes)
    if "publish" in parts:
        from benchmarks.publishing import measure_publishing

        figures += measure_publishing(sizes)
    if "workers" in parts:
        from benchmarks.workers import measure_workers

        figures += measure_workers(sizes)
    if "journal" in parts:
        from benchmarks.pipeline.append import measure_append

        figures += measure_append(sizes)
    if "cold" in parts:
        from benchmarks.pipeline.cold import measure_cold

        figures += measure_cold(sizes)
    if "compaction" in parts:
        from benchmarks.pipeline.compaction import measure_compaction

        figures += measure_compaction(sizes)
    if "cluster" in parts:
        from benchmarks.cluster.road import measure_cluster

        figures += measure_cluster(sizes)
    if "broky" in parts:
        from benchmarks.broky.road import measure_broky

        figures += measure_broky(sizes)
    if set(parts) & set(_WITH_SPARK):
        from benchmarks.pipeline.road import measure_road

        figures += measure_road(parts, sizes)
    return figures
