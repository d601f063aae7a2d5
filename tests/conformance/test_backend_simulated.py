"""The shared store of the simulation (`ropewalk prove`): the complete suite of shared backends, in this process."""

import asyncio
from random import Random

from ropewalk.core.rules import Rulebook
from ropewalk.ports import Backend
from ropewalk.testing.backend import RecordQueueConformance, SharedBackendConformance
from ropewalk.testing.backend_rig import BackendSetup, StoreFault
from ropewalk.testing.shared_store import LosableStore
from ropewalk.testing.simulation.unreliable import Air, Counts, Faults, UnreliableBackend, UnreliableLink

POLL_SECONDS = 0.005


def hold_slow_requests(link: UnreliableLink) -> None:
    """Requests wait as long as the link has a latency."""
    request = link._send_request

    async def held() -> None:
        while link.latency:
            await asyncio.sleep(POLL_SECONDS)
        await request()

    link._send_request = held  # type: ignore[method-assign]


class TestSimulatedBackend(RecordQueueConformance, SharedBackendConformance):
    def make_two(self, setup: BackendSetup) -> tuple[Backend, Backend]:
        faults = Faults(latency=0.0)
        faults.heal()
        air = Air(faults, Counts(), Random(1))
        store = LosableStore(Rulebook(setup.default, setup.rules), setup.clock, air, setup.limits)
        first, second = (UnreliableBackend(store, air, node, lambda sid: None) for node in ("one", "two"))
        hold_slow_requests(first.link)
        return first, second

    def disturb(self, backend: Backend, fault: StoreFault) -> None:
        assert isinstance(backend, UnreliableBackend)
        backend.link.cut = fault is StoreFault.UNAVAILABLE
        backend.link.deaf = fault is StoreFault.UNANSWERED
        backend.link.latency = 1.0 if fault is StoreFault.SLOW else 0.0
