"""All measurements of a cluster, engine by engine, so that only one engine's server runs at a time."""

import uvloop

from benchmarks.cluster.delivery import measure_delivery
from benchmarks.cluster.engines import ENGINES, MEMORY, Engine, opened, running
from benchmarks.cluster.nodes import measure_nodes
from benchmarks.cluster.publishing import measure_publishing
from benchmarks.report import Figure
from benchmarks.sizes import Sizes


def measure_cluster(sizes: Sizes) -> list[Figure]:
    figures: list[Figure] = []
    for engine in ENGINES:
        with running(engine) as url:
            figures += uvloop.run(_in_process(engine, url, sizes))
            if engine is not MEMORY:
                figures += measure_nodes(engine, url, sizes)
    return figures


async def _in_process(engine: Engine, url: str, sizes: Sizes) -> list[Figure]:
    async with opened(engine, url) as (nodes, bare):
        publishing = await measure_publishing(engine, nodes, bare, sizes)
        return publishing + await measure_delivery(engine, nodes, bare, sizes)
