"""A digest of everything that happens in a simulation: two runs with the same digest had the same history."""

from collections.abc import Callable
from hashlib import blake2b


class HistoryDigest:
    """A running hash over the events of a simulation, in their order and with their virtual times.

    Args:
        now: returns the virtual time.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._hash = blake2b(digest_size=8)

    def add(self, event: str, data: bytes = b"") -> None:
        self._hash.update(b"%r %d %s %d " % (self._now(), len(event), event.encode(), len(data)))
        self._hash.update(data)

    def hexdigest(self) -> str:
        return self._hash.hexdigest()
