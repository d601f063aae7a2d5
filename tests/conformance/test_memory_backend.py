"""The memory backend, through the suite every backend must pass."""

from ropewalk.adapters.backends.memory import MemoryBackend
from ropewalk.core.rules import Rulebook
from ropewalk.ports import Backend
from ropewalk.testing.backend import BackendConformance
from ropewalk.testing.backend_rig import BackendSetup


class TestMemoryBackend(BackendConformance):
    def make(self, setup: BackendSetup) -> Backend:
        return MemoryBackend(
            Rulebook(setup.default, setup.rules),
            setup.clock,
            dedup_ttl=setup.dedup_ttl,
            dedup_limit=setup.dedup_limit,
            max_members=setup.max_members,
        )
