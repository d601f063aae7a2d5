"""The memory backend, through the suite every backend must pass: alone, and over a real journal of each durability."""

import tempfile

from ropewalk.adapters.backends.memory import MemoryBackend
from ropewalk.adapters.journals.arrow import ArrowJournal
from ropewalk.core.rules import Rulebook
from ropewalk.model.limits import JournalLimits
from ropewalk.ports import Backend, Journal
from ropewalk.testing.backend import BackendConformance
from ropewalk.testing.backend_rig import BackendSetup


def made(setup: BackendSetup, journal: Journal | None = None) -> MemoryBackend:
    return MemoryBackend(
        Rulebook(setup.default, setup.rules),
        setup.clock,
        dedup_ttl=setup.dedup_ttl,
        dedup_limit=setup.dedup_limit,
        max_members=setup.max_members,
        journal=journal,
    )


class TestMemoryBackend(BackendConformance):
    def make(self, setup: BackendSetup) -> Backend:
        return made(setup)


class Journaled:
    """A backend whose journal begins and ends with it."""

    def __init__(self, setup: BackendSetup, durability: str) -> None:
        self._home = tempfile.TemporaryDirectory()
        self._journal = ArrowJournal(self._home.name, setup.clock, JournalLimits(shards=4), durability=durability)
        self._backend = made(setup, journal=self._journal)
        self.streams, self.sessions, self.presence = self._backend.streams, self._backend.sessions, self._backend.presence
        self.feed, self.leases = self._backend.feed, self._backend.leases
        self.record_queue, self.rules_changed = self._backend.record_queue, self._backend.rules_changed
        self.health, self.sweep, self.gauges = self._backend.health, self._backend.sweep, self._backend.gauges

    async def start(self) -> None:
        self._backend.recover(self._journal.open(300.0), 300.0, 15.0)
        await self._journal.start()
        await self._backend.start()

    async def stop(self) -> None:
        await self._backend.stop()
        await self._journal.stop()
        self._home.cleanup()


class TestMemoryBackendNoted(BackendConformance):
    def make(self, setup: BackendSetup) -> Backend:
        return Journaled(setup, "memory")


class TestMemoryBackendWritten(BackendConformance):
    def make(self, setup: BackendSetup) -> Backend:
        return Journaled(setup, "journal")


class TestMemoryBackendSynced(BackendConformance):
    def make(self, setup: BackendSetup) -> Backend:
        return Journaled(setup, "fsync")
