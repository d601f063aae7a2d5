"""The memory backend: streams, sessions and presence of one process. With a journal they survive a restart."""

from collections.abc import Awaitable, Callable, Sequence

from ropewalk.adapters.backends.memory.store import MemoryStore, NodePresence, NodeSessions, StoreOptions, random_epoch
from ropewalk.core.rules import Rulebook
from ropewalk.core.stats import Stats
from ropewalk.model.limits import STORE_LIMITS, StoreLimits
from ropewalk.model.messages import Deliverable, RemoteDisconnect, TransientRun
from ropewalk.ports import Clock, Deliver, Journal


def _nobody(messages: Sequence[Deliverable]) -> None:
    """No one listens before the node has started."""


class LocalFeed:
    """Implements `ports.Feed` and `ports.PrefixFeed`."""

    exact = True
    reports_losses = True

    def __init__(self) -> None:
        self.publish: Deliver = _nobody

    async def start(
        self, deliver: Deliver, obey: Callable[[RemoteDisconnect], Awaitable[int]], missed: Callable[[], None] = lambda: None
    ) -> None:
        self.publish = deliver  # itself, not a method around it
        self._obey = obey

    async def stop(self) -> None:
        self.publish = _nobody

    def publish_runs(self, runs: Sequence[TransientRun], confirm: bool = False) -> None:
        self.publish(runs)

    async def listen(self, stream: str) -> None:
        """It receives everything anyway."""

    def unlisten(self, stream: str) -> None:
        """As `listen`."""

    async def listen_prefix(self, prefix: bytes) -> None:
        """As `listen`."""

    def unlisten_prefix(self, prefix: bytes) -> None:
        """As `listen`."""

    async def disconnect(self, request: RemoteDisconnect) -> int:
        return await self._obey(request)

    def health(self) -> str:
        return ""


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
