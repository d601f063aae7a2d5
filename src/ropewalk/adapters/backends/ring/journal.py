"""The session log of a node of a ring: rows about a session are written where the session is kept, so that a recovery there has
them.

Invariant: rows of one session go to one node, in order, as long as its shard stays there. Nobody waits for them; what a node
that is not reached should have written is bounded, and the rest is counted.
"""

from collections.abc import Awaitable, Callable, Sequence

from ropewalk.adapters.backends.ring.router import Router
from ropewalk.adapters.backends.workers.backend import MOST_ROWS
from ropewalk.model.journal import Row, RowKind
from ropewalk.ports import Journal


class RingJournal:
    """Implements `ports.Journal`. `own` is that of this node."""

    instant = True

    def __init__(self, router: Router, own: Journal) -> None:
        self._router = router
        self._own = own
        self._waiting: dict[str, list[Row]] = {}  # by node
        self._sids: set[str] = set()  # sessions that live here, as far as rows say
        self._dropped = 0

    async def write(self, rows: Sequence[Row]) -> None:
        """What every node writes for itself."""
        await self._own.write(rows)

    def write_nowait(self, rows: Sequence[Row]) -> None:
        by_node: dict[str, list[Row]] = {}
        for row in rows:
            if row.kind is RowKind.CONNECTED or row.kind is RowKind.RESTORED:
                self._sids.add(row.sid)
            elif row.kind is RowKind.DISCONNECTED:
                self._sids.discard(row.sid)
            by_node.setdefault(self._router.holder(row.sid or row.stream), []).append(row)
        for name, some in by_node.items():
            node = self._router.nodes.get(name)
            if node is None or not node.note("rows", some):
                self._keep(name, some)

    def _keep(self, name: str, rows: list[Row]) -> None:
        waiting = self._waiting.setdefault(name, [])
        room = MOST_ROWS - len(waiting)
        waiting += rows[:room]
        self._dropped += max(0, len(rows) - room)

    async def say_anew(self, name: str, call: Callable[..., Awaitable[object]], note: Callable[..., None]) -> None:
        """To a node that may know nothing of this one: which sessions of its shards live here, and what it could not be
        told."""
        await call("claim", [sid for sid in self._sids if self._router.holder(sid) == name])
        if waiting := self._waiting.pop(name, None):
            note("rows", waiting)

    def forget(self, name: str) -> None:
        """The node is gone for good."""
        self._dropped += len(self._waiting.pop(name, ()))

    def health(self) -> str:
        return self._own.health()

    def gauges(self) -> dict[str, float]:
        return {**self._own.gauges(), "journal_unsent_rows": self._dropped}
