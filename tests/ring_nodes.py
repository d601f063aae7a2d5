"""Nodes of a ring in one process, with real TCP links between them."""

import asyncio
import socket
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from ropewalk.adapters.backends.memory.store import StoreOptions
from ropewalk.adapters.backends.ring.access import RingWorkerBackend, worker_name
from ropewalk.adapters.backends.ring.backend import RingBackend
from ropewalk.adapters.backends.ring.calls import process_name
from ropewalk.adapters.backends.ring.links import NodeDialler
from ropewalk.adapters.backends.ring.port import RingPort
from ropewalk.adapters.backends.workers.server import StoreServer
from ropewalk.adapters.backends.workers.store import SharedStore
from ropewalk.adapters.backends.workers.wire import BusConnection
from ropewalk.core.node_proofs import DialledNode
from ropewalk.core.ring_state import RingState
from ropewalk.core.ring_table import build_first_table
from ropewalk.core.rules import Rulebook
from ropewalk.model.errors import Unanswered, Unavailable
from ropewalk.model.refusals import Refusal
from ropewalk.model.ring import RingMember
from ropewalk.testing.backend_rig import BackendSetup, StoreFault
from tests.services import free_port

POLL_SECONDS = 0.005
KEY = "of this ring"
SHARDS = 16
NAMES = "abc"
SECONDS = 60.0


class Unlimited:
    """Implements `NodeAdmission`."""

    def is_crowded(self, unproven: int) -> bool:
        return False

    def count(self, why: Refusal, **numbers: int) -> None:
        raise AssertionError(f"a node was refused: {why}")


def disturb(calls: Any, fault: Callable[[], StoreFault]) -> None:
    """Make the calls over a link fail as `fault` says at the time."""
    call = calls.call

    async def disturbed(method: str, *arguments: object) -> Any:
        if fault() is StoreFault.UNAVAILABLE:
            raise Unavailable("disturbed")
        while fault() is StoreFault.SLOW:
            await asyncio.sleep(POLL_SECONDS)
        answer = await call(method, *arguments)
        if fault() is StoreFault.UNANSWERED:
            raise Unanswered("disturbed")
        return answer

    calls.call = disturbed


class RingNodeInProcess(RingBackend):
    """One node with its own port. `run` is a new number for each start."""

    def __init__(self, ring: "RingInProcess", name: str, port: socket.socket, members: list[RingMember], run: int) -> None:
        self._ring = ring
        self._socket = port
        setup = ring.setup
        state = RingState(name, build_first_table(members, SHARDS))
        server = StoreServer()
        rules, options = Rulebook(setup.default, setup.rules), StoreOptions(setup.limits, shards=SHARDS)
        store = SharedStore(rules, setup.clock, server, options, run * 1000)
        member = next(member for member in members if member.name == name)
        super().__init__(state, member, store, server, NodeDialler(process_name(name, str(run)), KEY, None, {}))
        self._port = RingPort(self.accept, partial(DialledNode, KEY, name), Unlimited(), None)
        self.fault = StoreFault.NONE

    async def run(self) -> None:
        self._socket.listen()
        self._socket.setblocking(False)
        self._port.start([self._socket])
        await super().start()

    async def end(self) -> None:
        await self._port.stop()
        await super().stop()

    # The conformance suites start and stop a backend, and with it the ring:

    async def start(self) -> None:
        await self._ring.begin()

    async def stop(self) -> None:
        await self._ring.end()

    async def sweep(self) -> None:
        await self._ring.sweep()

    def gauges(self) -> dict[str, float]:
        return self._ring.gauges()


class RingInProcess:
    """`start` starts single nodes. `begin` starts all for its first caller, and `end` stops them for the last one."""

    def __init__(self, setup: BackendSetup) -> None:
        self.setup = setup
        self.nodes: dict[str, RingNodeInProcess] = {}
        self.members: dict[str, RingMember] = {}
        self._runs = 0
        self._users = 0

    def prepare(self, names: str) -> None:
        """Create nodes with the addresses of each other and of earlier ones. They are not started."""
        ports: dict[str, socket.socket] = {}
        for name in names:
            ports[name] = port = socket.socket()
            port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            before = self.members.get(name)
            # `free_port` returns ports that no outgoing connection takes while the node is down.
            port.bind(("127.0.0.1", free_port() if before is None else int(before.address.rpartition(":")[2])))
            self.members[name] = RingMember(name, f"127.0.0.1:{port.getsockname()[1]}")
        for name, port in ports.items():
            self._runs += 1
            self.nodes[name] = RingNodeInProcess(self, name, port, list(self.members.values()), self._runs)

    async def start(self, names: str) -> None:
        self.prepare(names)
        for name in names:
            await self.nodes[name].run()

    async def settled(self) -> None:
        """Wait until all nodes reach each other and each shard is held by its owner."""
        await self.until(lambda: not any(node.health() or node.impairments() for node in self.nodes.values()))
        await self.until(
            lambda: all(
                node.state.serves(shard) == (node.state.table.owners[shard] == name)
                for name, node in self.nodes.items()
                for shard in range(SHARDS)
            )
        )

    @staticmethod
    async def until(holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(SECONDS):
            while not holds():
                await asyncio.sleep(0.005)

    async def kill(self, name: str) -> None:
        """Stop the node; the shards that it holds are lost."""
        await self.nodes.pop(name).end()

    async def stop(self) -> None:
        for name in list(self.nodes):
            await self.kill(name)

    async def sweep(self) -> None:
        for node in self.nodes.values():
            await node._store.sweep()

    def gauges(self) -> dict[str, float]:
        gauges = [node._store.gauges() for node in self.nodes.values()]
        return {name: sum(each[name] for each in gauges) for name in gauges[0]}

    async def begin(self) -> None:
        self._users += 1
        if self._users > 1:
            return
        for name in NAMES:
            await self.nodes[name].run()
        await self.settled()
        for node in self.nodes.values():
            for calls in node._nodes.values():
                disturb(calls, partial(_fault_of, node))

    async def end(self) -> None:
        self._users -= 1
        if self._users == 0:
            await self.stop()


def _fault_of(node: RingNodeInProcess) -> StoreFault:
    return node.fault


def cut(node: RingBackend | RingWorkerBackend, name: str) -> Callable[[], None]:
    """Close the link to that node and refuse to reopen it, until the returned function is called."""
    link = node._links[name]
    dial = link.dial

    async def refuse(connection: BusConnection) -> None:
        raise OSError("cut")

    link.dial = refuse
    assert link._connection is not None
    link._connection.close()

    def repair() -> None:
        link.dial = dial

    return repair


class RingWorkerInProcess(RingWorkerBackend):
    """A worker of the node `name`, configured with this number of shards."""

    def __init__(self, ring: RingInProcess, name: str, shards: int = SHARDS) -> None:
        self.ring = ring
        self.fault = StoreFault.NONE
        self._directory = tempfile.TemporaryDirectory(prefix="ropewalk-ring-")
        self._path = str(Path(self._directory.name, "bus.sock"))
        state = RingState(name, build_first_table(list(ring.members.values()), shards))
        super().__init__(state, self._path, NodeDialler(worker_name(name, 1, "1"), KEY, None, {}), ring.setup.clock)

    async def start(self) -> None:
        await self.ring.nodes[self.state.me]._server.start(self._path)
        await super().start()
        await self.ring.until(lambda: not self.impairments())

    async def stop(self) -> None:
        await super().stop()
        self._directory.cleanup()

    def disturb(self) -> None:
        for calls in self._nodes.values():
            disturb(calls, lambda: self.fault)

    def cut(self, name: str) -> Callable[[], None]:
        return cut(self, name)

    async def sweep(self) -> None:
        await self.ring.sweep()

    def gauges(self) -> dict[str, float]:
        return self.ring.gauges()
