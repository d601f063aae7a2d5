"""The memory backend: streams, sessions and presence of one process, gone when it ends.

The rule it keeps: no method suspends, so each is one step on the event loop, and nothing can come between its parts.
"""

import secrets
from collections.abc import Callable

from ropewalk.adapters.backends.memory.presence import MemoryPresence
from ropewalk.adapters.backends.memory.sessions import MemorySessions
from ropewalk.adapters.backends.memory.streams import MemoryStreams
from ropewalk.core.dedup import Dedup
from ropewalk.core.roster import Roster
from ropewalk.core.rules import Rulebook
from ropewalk.ports import Clock


def random_epoch() -> str:
    """Eight URL-safe characters: 48 random bits."""
    return secrets.token_urlsafe(6)


class MemoryBackend:
    """Fills `ports.Backend`. Every store is bounded: history by its rules, the others by the limits given here."""

    def __init__(
        self,
        rulebook: Rulebook,
        clock: Clock,
        new_epoch: Callable[[], str] = random_epoch,
        dedup_ttl: float = 300.0,
        dedup_limit: int = 100_000,
        idle_factor: float = 10.0,
        sessions_limit: int = 200_000,
        max_members: int = 10_000,
    ) -> None:
        self._roster = Roster(max_members)
        self._dedup = Dedup(dedup_ttl, dedup_limit)
        self._clock = clock
        self.streams = MemoryStreams(rulebook, clock, new_epoch, self._dedup, idle_factor, dedup_ttl)
        self.sessions = MemorySessions(clock, sessions_limit)
        self.presence = MemoryPresence(self._roster, clock)

    async def start(self) -> None:
        """There is nothing to open."""

    async def stop(self) -> None:
        """There is nothing to close."""

    def trouble(self) -> str:
        return ""

    async def sweep(self) -> None:
        self.streams.sweep()
        self.sessions.sweep()

    def gauges(self) -> dict[str, float]:
        return {
            "streams": len(self.streams),
            "history_messages": self.streams.kept.messages,
            "history_bytes": self.streams.kept.bytes,
            "sessions_kept": len(self.sessions),
            "presence_members": self._roster.members,
            "dedup_keys": len(self._dedup),
        }
