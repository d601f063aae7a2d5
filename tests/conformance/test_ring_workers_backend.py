"""The backend of workers of a ring, over real links to three nodes in this process, through the suite of shared backends."""

import tempfile
from pathlib import Path

from ropewalk.adapters.backends.ring.worker import RingWorkerBackend
from ropewalk.core.ring_state import RingState
from ropewalk.core.ring_table import first_table
from ropewalk.ports import Backend
from ropewalk.testing.backend import SharedBackendConformance
from ropewalk.testing.backend_rig import BackendSetup, StoreFault
from tests.ring_nodes import SHARDS, TOKEN, RingInProcess, disturb


class WorkerInProcess(RingWorkerBackend):
    """A worker of the node `name`."""

    def __init__(self, ring: RingInProcess, name: str) -> None:
        self._ring = ring
        self._directory = tempfile.TemporaryDirectory(prefix="ropewalk-ring-")
        path = str(Path(self._directory.name, "bus.sock"))
        state = RingState(name, first_table(list(ring.members.values()), SHARDS))
        super().__init__(state, path, 1, "1", TOKEN, None, ring.setup.clock)
        self.path = path
        self.fault = StoreFault.NONE

    async def start(self) -> None:
        await self._ring.begin()
        await self._ring.nodes[self.state.me]._server.start(self.path)
        await super().start()
        await self._ring.until(lambda: not self.impairments())
        for calls in self._nodes.values():
            disturb(calls, lambda: self.fault)

    async def stop(self) -> None:
        await super().stop()
        await self._ring.end()
        self._directory.cleanup()

    async def sweep(self) -> None:
        await self._ring.sweep()

    def gauges(self) -> dict[str, float]:
        return self._ring.gauges()


class TestRingWorkerBackend(SharedBackendConformance):
    def make_two(self, setup: BackendSetup) -> tuple[Backend, Backend]:
        ring = RingInProcess(setup)
        ring.prepare("abc")
        return WorkerInProcess(ring, "a"), WorkerInProcess(ring, "b")

    def disturb(self, backend: Backend, fault: StoreFault) -> None:
        assert isinstance(backend, WorkerInProcess)
        backend.fault = fault
