"""The memory backend: streams, sessions and presence of one process. With a journal they survive a restart."""

from collections.abc import Callable

from ropewalk.adapters.backends.memory.feed import LocalFeed
from ropewalk.adapters.backends.memory.store import MemoryStore, NodePresence, NodeSessions, StoreOptions, random_epoch
from ropewalk.core.rules import Rulebook
from ropewalk.core.stats import Stats
from ropewalk.model.limits import STORE_LIMITS, StoreLimits
from ropewalk.ports import Clock, Journal


class MemoryBackend:
    """Implements `ports.Backend`: the only node of its store."""

    leases = None
    record_queue = None

    def __init__(
        self,
        rulebook: Rulebook,
        clock: Clock,
        limits: StoreLimits = STORE_LIMITS,
        journal: Journal | None = None,
        stats: Stats | None = None,
        new_epoch: Callable[[], str] = random_epoch,
    ) -> None:
        self.feed = LocalFeed()
        options = StoreOptions(limits, journal, stats, new_epoch=new_epoch)
        self.store = store = MemoryStore(rulebook, clock, self.feed, options)
        self.streams = store.streams
        self.sessions = NodeSessions(store, "")
        self.presence = NodePresence(store, "")
        self.stop, self.sweep, self.recover = store.stop, store.sweep, store.recover
        self.reload_rules, self.gauges = store.reload_rules, store.gauges

    async def start(self) -> None:
        """There is nothing to open."""

    def health(self) -> str:
        return ""
