"""The backend of workers of a ring, over real links to three nodes in this process, through the suite of shared backends."""

from ropewalk.ports import Backend
from ropewalk.testing.backend import SharedBackendConformance
from ropewalk.testing.backend_rig import BackendSetup, StoreFault
from tests.ring_nodes import RingInProcess, RingWorkerInProcess


class DisturbedWorker(RingWorkerInProcess):
    """Starts and stops its ring, as the backends of a conformance suite do."""

    async def start(self) -> None:
        await self.ring.begin()
        await super().start()
        self.disturb()

    async def stop(self) -> None:
        await super().stop()
        await self.ring.end()


class TestRingWorkerBackend(SharedBackendConformance):
    def make_two(self, setup: BackendSetup) -> tuple[Backend, Backend]:
        ring = RingInProcess(setup)
        ring.prepare("abc")
        return DisturbedWorker(ring, "a"), DisturbedWorker(ring, "b")

    def disturb(self, backend: Backend, fault: StoreFault) -> None:
        assert isinstance(backend, DisturbedWorker)
        backend.fault = fault
