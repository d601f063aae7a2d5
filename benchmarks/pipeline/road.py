"""The parts that need Spark, with one session for all of them: starting another would cost more than most parts do."""

from collections.abc import Sequence
from functools import partial

from benchmarks.floor import Floor
from benchmarks.load.field import Field
from benchmarks.pipeline.batches import ground, measure_archive, measure_sink, measure_source
from benchmarks.pipeline.queryable import measure_queryable
from benchmarks.pipeline.quiet import measure_quiet
from benchmarks.pipeline.spark import Spark
from benchmarks.remote import Remote
from benchmarks.report import Figure
from benchmarks.sizes import QUICK, Sizes

WHOLE = {"source": measure_source, "archive": measure_archive, "sink": measure_sink}


def measure_road(parts: Sequence[str], sizes: Sizes) -> list[Figure]:
    figures: list[Figure] = []
    with Remote(partial(Spark, hurried=sizes is QUICK)) as spark:
        if chosen := [measure for name, measure in WHOLE.items() if name in parts]:
            with ground(spark, sizes) as on:
                figures += [found for measure in chosen for found in measure(on)]
        if "queryable" in parts:
            figures += measure_queryable(spark, sizes)
        if "quiet" in parts:
            with Remote(Floor) as floor, Remote(Field) as field:
                figures += measure_quiet(spark, floor, field, sizes)
    return figures
