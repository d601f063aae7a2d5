"""Idempotency keys: which (stream, uid) has been registered already, and where.

Invariant: a key is known for `ttl` seconds from its first registration, unless `limit` newer ones came since.
"""

from collections import OrderedDict

from ropewalk.model.messages import Position


class Dedup:
    """Keys in order of their registration: every key lives equally long, so the oldest is always the next to go."""

    __slots__ = ("_known", "_limit", "_ttl")

    def __init__(self, ttl: float, limit: int) -> None:
        self._ttl = ttl
        self._limit = limit
        self._known: OrderedDict[tuple[str, str], tuple[Position, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def find(self, stream: str, uid: str, now: float) -> Position | None:
        """The position of the first publication with this uid, while it is known."""
        known = self._known.get((stream, uid))
        return known[0] if known is not None and now < known[1] else None

    def remember(self, stream: str, uid: str, position: Position, now: float) -> None:
        """Call it only for a key that `find` does not know. The oldest key makes room when there is none."""
        key = (stream, uid)
        self._known.pop(key, None)  # it may be here and expired: its place in the order is a new one
        self._known[key] = (position, now + self._ttl)
        if len(self._known) > self._limit:
            self._known.popitem(last=False)

    def expire(self, now: float, most: int) -> None:
        """Let go of at most `most` keys whose time is over."""
        while most > 0 and self._known:
            _, until = next(iter(self._known.values()))
            if now < until:
                return
            self._known.popitem(last=False)
            most -= 1
