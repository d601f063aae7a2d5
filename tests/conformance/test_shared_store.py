"""The store of the simulation, through the suite every backend must pass that several nodes share."""

from random import Random

from ropewalk.core.rules import Rulebook
from ropewalk.ports import Backend
from ropewalk.testing.backend import RecordQueueConformance, SharedBackendConformance
from ropewalk.testing.backend_rig import BackendSetup, StoreFault
from ropewalk.testing.shared_store import LosableStore
from ropewalk.testing.simulation.unreliable import Air, Counts, Faults, UnreliableBackend

SLOW_SECONDS = 0.2


class TestSharedStore(RecordQueueConformance, SharedBackendConformance):
    def make_two(self, setup: BackendSetup) -> tuple[Backend, Backend]:
        faults = Faults(latency=0.0)
        faults.heal()
        air = Air(faults, Counts(), Random(1))
        store = LosableStore(
            Rulebook(setup.default, setup.rules),
            setup.clock,
            air,
            presence_ttl=setup.presence_ttl,
            dedup_ttl=setup.dedup_ttl,
            dedup_limit=setup.dedup_limit,
            max_members=setup.max_members,
        )
        first, second = (UnreliableBackend(store, air, node, lambda sid: None) for node in ("one", "two"))
        return first, second

    def disturb(self, backend: Backend, fault: StoreFault) -> None:
        assert isinstance(backend, UnreliableBackend)
        backend.link.cut = fault is StoreFault.UNAVAILABLE
        backend.link.deaf = fault is StoreFault.UNANSWERED
        backend.link.latency = SLOW_SECONDS if fault is StoreFault.SLOW else 0.0
