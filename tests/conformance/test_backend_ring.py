"""The backend of a ring of three nodes, over real links in this process: the complete suite of shared backends."""

import pytest

from ropewalk.ports import Backend
from ropewalk.testing.backend import SharedBackendConformance
from ropewalk.testing.backend_rig import BackendSetup, StoreFault
from tests.ring_nodes import RingInProcess, RingNodeInProcess

pytestmark = pytest.mark.tier("all")


class TestRingBackend(SharedBackendConformance):
    def make_two(self, setup: BackendSetup) -> tuple[Backend, Backend]:
        ring = RingInProcess(setup)
        ring.prepare("abc")
        return ring.nodes["a"], ring.nodes["b"]

    def disturb(self, backend: Backend, fault: StoreFault) -> None:
        assert isinstance(backend, RingNodeInProcess)
        backend.fault = fault
