"""The engines: how to start each one, and its measurements. Uses the servers of the tests, on free ports."""

import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from msgspec import Struct

from benchmarks.cluster.bare import BareMemory, BareNats, BareRedis
from benchmarks.cluster.sides import Nodes, Side
from benchmarks.report import Bar
from benchmarks.sizes import Sizes
from ropewalk.adapters.backends.memory import MemoryBackend
from ropewalk.adapters.backends.nats import NatsBackend
from ropewalk.adapters.backends.redis import RedisBackend
from ropewalk.connections.nats import NatsAddress
from ropewalk.connections.redis import RedisAddress
from ropewalk.core.rules import Rulebook
from ropewalk.model.rules import StreamRules
from ropewalk.ports import NodeName
from tests.services import nats_server, redis_server


class Engine(Struct, frozen=True):
    """`letter` is in the keys of its figures. `bar`: of publications a second with all publishers at one stream."""

    name: str
    letter: str
    bar: Bar | None = None

    def publishers(self, sizes: Sizes) -> int:
        return sizes.nats_publishers if self is NATS else sizes.redis_publishers


MEMORY = Engine("memory", "m")
REDIS = Engine("Redis", "r", Bar("ratio", ">=", 3.0))
NATS = Engine("NATS", "n", Bar("ratio", ">=", 2.0))
ENGINES = (MEMORY, REDIS, NATS)
ONE, TWO = (NodeName(name, name) for name in ("one", "two"))


@contextmanager
def running(engine: Engine) -> Iterator[str]:
    """Its server; the URL, "" where there is none."""
    if engine is MEMORY:
        yield ""
    elif engine is REDIS:
        with redis_server() as redis:
            yield redis.url
    else:
        with nats_server() as nats:
            yield nats.url


def flags(engine: Engine, url: str) -> tuple[str, ...]:
    """What makes `ropewalk serve` a node of it."""
    if engine is MEMORY:
        return ()
    return ("--broker", "redis", "--redis_url", url) if engine is REDIS else ("--broker", "nats", "--nats_servers", url)


@asynccontextmanager
async def opened(engine: Engine, url: str) -> AsyncIterator[tuple[Nodes, Side]]:
    """Two nodes, and the bare client."""
    nodes = _nodes(engine, url)
    bare = await _bare(engine, url)
    await nodes.open()
    try:
        yield nodes, bare
    finally:
        await bare.close()
        await nodes.close()


def _nodes(engine: Engine, url: str) -> Nodes:
    rules = Rulebook(StreamRules())
    if engine is MEMORY:
        memory = MemoryBackend(rules, time.time)
        return Nodes(memory, memory)
    if engine is REDIS:
        address = RedisAddress(url)
        return Nodes(RedisBackend(rules, address, ONE), RedisBackend(rules, address, TWO))
    servers = NatsAddress((url,))
    return Nodes(NatsBackend(servers, ONE, rules, time.time), NatsBackend(servers, TWO, rules, time.time))


async def _bare(engine: Engine, url: str) -> Side:
    if engine is MEMORY:
        return BareMemory()
    return BareRedis(url) if engine is REDIS else await BareNats.open(url)
