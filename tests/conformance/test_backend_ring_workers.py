"""The backend of workers of a ring, over real links to three nodes in this process: the cases with several shards.

Stores and links are those of test_backend_ring.py. A worker adds that it finds the node of a shard itself.
"""

import pytest

from ropewalk.ports import Backend
from ropewalk.testing.backend import SharedBackendConformance
from ropewalk.testing.backend_rig import BackendSetup, StoreFault
from tests.conformance.selection import SHARDED, SHARED, only
from tests.ring_nodes import RingInProcess, RingWorkerInProcess

pytestmark = pytest.mark.tier("all")


class DisturbedWorker(RingWorkerInProcess):
    """Starts and stops its ring, as a suite expects of a backend."""

    async def start(self) -> None:
        await self.ring.begin()
        await super().start()
        self.disturb()

    async def stop(self) -> None:
        await super().stop()
        await self.ring.end()


@only(*SHARDED, *SHARED)
class TestRingWorkerBackend(SharedBackendConformance):
    def make_two(self, setup: BackendSetup) -> tuple[Backend, Backend]:
        ring = RingInProcess(setup)
        ring.prepare("abc")
        return DisturbedWorker(ring, "a"), DisturbedWorker(ring, "b")

    def disturb(self, backend: Backend, fault: StoreFault) -> None:
        assert isinstance(backend, DisturbedWorker)
        backend.fault = fault
