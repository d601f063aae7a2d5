"""The memory backend: the complete suite alone, and with each durability of a journal the cases that a journal can change.

With a journal, appends are registered when their rows are written, and sessions outlive the process. Nothing else differs.
`journal` and `fsync` share that code and differ inside the journal, see test_journals.py.
"""

import tempfile

import pytest

from ropewalk.adapters.backends.memory import MemoryBackend
from ropewalk.adapters.journals.arrow import ArrowJournal
from ropewalk.core.rules import Rulebook
from ropewalk.model.limits import JournalLimits
from ropewalk.ports import Backend, Journal
from ropewalk.testing.backend import BackendConformance
from ropewalk.testing.backend_rig import BackendSetup
from tests.conformance.selection import only


def memory_backend(setup: BackendSetup, journal: Journal | None = None) -> MemoryBackend:
    return MemoryBackend(Rulebook(setup.default, setup.rules), setup.clock, setup.limits, journal)


class TestMemoryBackend(BackendConformance):
    def make(self, setup: BackendSetup) -> Backend:
        return memory_backend(setup)


class JournaledBackend:
    """Implements `ports.Backend`: a memory backend and its journal, started and stopped together."""

    def __init__(self, setup: BackendSetup, durability: str) -> None:
        self._home = tempfile.TemporaryDirectory()
        self._journal = ArrowJournal(self._home.name, setup.clock, JournalLimits(shards=4), durability=durability)
        self._backend = memory_backend(setup, journal=self._journal)
        self.streams, self.sessions, self.presence = self._backend.streams, self._backend.sessions, self._backend.presence
        self.feed, self.leases = self._backend.feed, self._backend.leases
        self.record_queue, self.reload_rules = self._backend.record_queue, self._backend.reload_rules
        self.health, self.sweep, self.gauges = self._backend.health, self._backend.sweep, self._backend.gauges

    async def start(self) -> None:
        self._backend.recover(self._journal.open(300.0), 300.0, 15.0)
        await self._journal.start()
        await self._backend.start()

    async def stop(self) -> None:
        await self._backend.stop()
        await self._journal.stop()
        self._home.cleanup()


@only(
    "batch_keeps_its_order_and_message_fields",
    "optional_message_fields_are_stored",
    "instant_append_does_not_suspend",
    "uid_is_registered_once_per_stream",
    "uid_expires_after_its_ttl",
    "stream_keeps_the_partition_key_of_its_first_publication",
    "different_partition_key_rejects_the_whole_batch",
    "rejected_partition_key_does_not_fail_concurrent_appends",
    "sequence_is_registered_once_and_keeps_its_position",
    "sequence_outlives_every_uid",
    "concurrent_appends_register_a_sequence_once",
    "message_can_be_read_when_it_arrives",
    "duplicate_is_not_delivered_again",
    "transient_messages_have_no_position_and_are_not_stored",
    "exact_feed_delivers_once_in_order_before_the_receipts",
    "abandoned_returns_the_sessions_that_end_with_the_process",
    "removed_stream_starts_a_new_epoch",
)
class TestDurabilityJournal(BackendConformance):
    def make(self, setup: BackendSetup) -> Backend:
        return JournaledBackend(setup, "journal")


@pytest.mark.tier("all")
class TestDurabilityFsync(TestDurabilityJournal):
    def make(self, setup: BackendSetup) -> Backend:
        return JournaledBackend(setup, "fsync")


@pytest.mark.tier("all")
class TestDurabilityMemory(TestDurabilityJournal):
    """Appends do not wait for the journal."""

    def make(self, setup: BackendSetup) -> Backend:
        return JournaledBackend(setup, "memory")
