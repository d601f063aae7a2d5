"""A cluster with fault injection: an engine, nodes, a relay between each node and the engine, and a seeded plan of faults."""

import asyncio
import contextlib
import random
import signal
import subprocess
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import NamedTuple

import redis.asyncio

from tests.clients.credentials import SECRET
from tests.scenarios.relay import Relay, relay_to
from tests.server import Address, RunningServer
from tests.services import RedisServer, Service, nats_cluster, nats_server, redis_server

LEASE_SECONDS = 6.0  # of a node, after which the others consider it dead
PRESENCE_SECONDS = 2.0

FLAGS = (
    *("--public", "--jwt_secret", SECRET, "--command_rate", "0"),
    *("--history_limit", "100000", "--presence_ttl", f"{PRESENCE_SECONDS}s", "--resume_timeout", "60s"),
)


NODE_FAULTS = ("kill a node", "pause a node", "restart a node")
ENGINE_FAULTS = ("kill the engine", "pause the engine")
LINK_FAULTS = ("cut a link", "freeze a link")
PROMOTION = "promote the replica"


class Engine(NamedTuple):
    """`services`: its processes. `flags`: of a node that reaches it by these ports. `relayed`: nodes go through relays to the
    first service; clients of an engine that announces its other servers would bypass them. `lossy`: it may lose what it has
    acknowledged. `promotion`: the only fault of a pair. `entries_port`: of the Redis from which `redisx` reads."""

    name: str
    services: Sequence[Service]
    flags: Callable[[Sequence[int]], Sequence[str]]
    relayed: bool = True
    lossy: bool = False
    promotion: "Promotion | None" = None
    entries_port: int = 0

    @property
    def faults(self) -> tuple[str, ...]:
        own = (PROMOTION,) if self.promotion is not None else ENGINE_FAULTS if self.services else ()
        return (*NODE_FAULTS, *own, *(LINK_FAULTS if self.relayed and self.services else ()))


EngineMaker = Callable[[], AbstractAsyncContextManager[Engine]]


def _on_redis(ports: Sequence[int]) -> Sequence[str]:
    return ("--broker", "redis", "--broadcast_adapter", "http,redisx", "--redis_url", f"redis://127.0.0.1:{ports[0]}")


@contextlib.asynccontextmanager
async def redis_engine() -> AsyncIterator[Engine]:
    """Everything is written before it is acknowledged: it survives the process, though not the machine."""
    with redis_server("--appendonly", "yes", "--appendfsync", "everysec") as server:
        yield Engine("Redis", [server], _on_redis, entries_port=server.port)


@contextlib.asynccontextmanager
async def forgetful_redis_engine() -> AsyncIterator[Engine]:
    """It keeps nothing over a restart."""
    with redis_server("--appendonly", "no") as server:
        yield Engine("Redis without persistence", [server], _on_redis, lossy=True)


@contextlib.asynccontextmanager
async def redis_pair_engine() -> AsyncIterator[Engine]:
    """A replica that lags behind is promoted, again and again."""
    with contextlib.ExitStack() as stack:
        homes = [Path(stack.enter_context(tempfile.TemporaryDirectory())) for _ in range(2)]
        master = RedisServer(homes[0], ("--appendonly", "no"))
        master.start()
        stack.callback(master.stop)
        async with relay_to(master.port) as replication:
            promotion = Promotion(master, homes[1], replication)
            stack.callback(promotion.stop)
            yield Engine("Redis with a replica", [master], _on_redis, lossy=True, promotion=promotion)


@contextlib.asynccontextmanager
async def nats_engine() -> AsyncIterator[Engine]:
    with nats_server() as server:
        yield Engine("NATS", [server], lambda ports: ("--broker", "nats", "--nats_servers", _nats_urls(ports)))


@contextlib.asynccontextmanager
async def nats_r3_engine() -> AsyncIterator[Engine]:
    with nats_cluster() as servers:
        flags = ("--broker", "nats", "--nats_replicas", "3", "--nats_servers")
        yield Engine("NATS with three replicas", servers, lambda ports: (*flags, _nats_urls(ports)), relayed=False)


def _nats_urls(ports: Sequence[int]) -> str:
    return ",".join(f"nats://127.0.0.1:{port}" for port in ports)


# --- nodes -----------------------------------------------------------------------------------------------------------------


class NamedAddress(Address):
    def __init__(self, name: str, url: str) -> None:
        self.name = name
        super().__init__(url)


class ClusterNode(NamedAddress):
    """One node, which comes back at the same address and under the same name."""

    def __init__(self, name: str, home: Path, flags: Sequence[str], link: Relay | None) -> None:
        self.link = link
        self._home = home
        self._flags = flags
        self._starts: list[RunningServer] = []
        super().__init__(name, "")

    @property
    def process(self) -> RunningServer:
        return self._starts[-1]

    async def start(self) -> None:
        home = self._home / f"{self.name}-{len(self._starts)}"
        home.mkdir()
        port = ("--port", str(self.port)) if self.url else ()
        flags = (*FLAGS, *self._flags, "--node_id", self.name, *port)
        self._starts.append(await asyncio.to_thread(RunningServer, flags, home))
        self._url = self.process.url

    def end(self) -> None:
        for server in self._starts:
            if server.process.poll() is None:
                server.kill()

    def logs(self) -> str:
        return "".join(f"--- {self.name}, start {place}\n{server.log()}" for place, server in enumerate(self._starts))


class Cluster(NamedTuple):
    """Implements `scenario.Servers`."""

    engine: Engine
    nodes: Sequence[ClusterNode]

    @property
    def asked(self) -> Sequence[ClusterNode]:
        return self.nodes

    @property
    def lossy(self) -> bool:
        return self.engine.lossy

    @property
    def entries_port(self) -> int:
        return self.engine.entries_port

    def a_round(self, chance: random.Random) -> "list[Fault]":
        """A node's pause is longer than its lease; an engine's pause sometimes is."""
        kinds = list(self.engine.faults)
        chance.shuffle(kinds)
        return [
            Fault(
                kind,
                chance.randrange(len(self.engine.services) if kind in ENGINE_FAULTS else len(self.nodes)),
                _seconds(kind, chance),
            )
            for kind in kinds
        ]

    async def inflict(self, fault: "Fault", counts: Counter[str]) -> None:
        counts[fault.kind] += 1
        if self.engine.promotion is not None and fault.kind == PROMOTION:
            await self.engine.promotion.happen(fault.seconds, [node.link for node in self.nodes if node.link is not None])
        elif fault.kind in ENGINE_FAULTS:
            await _disturb_engine(fault, self.engine.services[fault.target])
        elif fault.kind in LINK_FAULTS:
            link = self.nodes[fault.target].link
            assert link is not None
            await _disturb_link(fault, link)
        else:
            await _disturb_node(fault, self.nodes[fault.target])


@contextlib.asynccontextmanager
async def running_cluster(engine: Engine, size: int = 3, flags: Sequence[str] = ()) -> AsyncIterator[Cluster]:
    async with contextlib.AsyncExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        ports = [service.port for service in engine.services]
        nodes = []
        for number in range(size):
            link = await stack.enter_async_context(relay_to(ports[0])) if engine.relayed else None
            reached = [int(link.url.rpartition(":")[2])] if link is not None else ports
            node = ClusterNode(f"n{number}", home, (*engine.flags(reached), *flags), link)
            stack.callback(node.end)
            nodes.append(node)
        await asyncio.gather(*(node.start() for node in nodes))
        yield Cluster(engine, nodes)


# --- faults ----------------------------------------------------------------------------------------------------------------


class Fault(NamedTuple):
    """`target`: which node, or which process of the engine."""

    kind: str
    target: int
    seconds: float


def _seconds(kind: str, chance: random.Random) -> float:
    match kind:
        case "pause a node":
            return LEASE_SECONDS + 1 + chance.random()
        case "pause the engine":
            return chance.choice((1.0, 3.0, LEASE_SECONDS + 1))
        case "freeze a link":
            return chance.choice((1.0, LEASE_SECONDS + 1))
        case _:
            return chance.random() * 2


async def _disturb_engine(fault: Fault, service: Service) -> None:
    if fault.kind == "pause the engine":
        service.pause()
        await asyncio.sleep(fault.seconds)
        service.resume()
    else:
        service.kill()
        await asyncio.sleep(fault.seconds)
        await asyncio.to_thread(service.start)


async def _disturb_link(fault: Fault, link: Relay) -> None:
    if fault.kind == "freeze a link":
        link.freeze()
        await asyncio.sleep(fault.seconds)
        link.thaw()
    else:
        link.break_links()


async def _disturb_node(fault: Fault, node: ClusterNode) -> None:
    if fault.kind == "pause a node":
        node.process.process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(fault.seconds)
        node.process.process.send_signal(signal.SIGCONT)
        return
    if fault.kind == "kill a node":
        node.process.kill()
    else:
        try:
            await asyncio.to_thread(node.process.stop)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{node.name} does not stop:\n{node.process.log()}") from None
    await asyncio.sleep(fault.seconds)
    await node.start()


class Promotion:
    """A master that dies while what it replicates is held up, and the replica that takes its place: it lacks a tail.

    Then a new replica of the new master is started. Nodes reach the current master through their relays.
    """

    def __init__(self, master: RedisServer, home: Path, replication: Relay) -> None:
        self._master = master
        self._spare = home
        self._replication = replication
        self._replica = self._new_replica()

    def _new_replica(self) -> RedisServer:
        for left in self._spare.iterdir():
            left.unlink()
        self._replication.port = self._master.port
        source = self._replication.url.rpartition(":")[2]
        replica = RedisServer(self._spare, ("--appendonly", "no", "--replicaof", f"127.0.0.1 {source}"))
        return replica

    async def happen(self, seconds: float, links: Sequence[Relay]) -> None:
        await asyncio.to_thread(self._replica.start)
        at = redis.asyncio.Redis(port=self._replica.port)
        while (await at.info("replication"))["master_link_status"] != "up":
            await asyncio.sleep(0.05)
        self._replication.freeze()
        await asyncio.sleep(seconds)
        self._master.kill()
        self._replication.break_links()
        self._replication.thaw()
        await at.replicaof("NO", "ONE")
        await at.aclose()
        former, self._master = self._master, self._replica
        for link in links:
            link.port = self._master.port
            link.break_links()
        self._spare = former.home
        self._replica = self._new_replica()

    def stop(self) -> None:
        self._master.stop()
        self._replica.stop()
