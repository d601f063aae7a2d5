"""What the journal says of sessions whose worker, or whose store, is gone: held back until it is known whether they still live.

Invariant: a session that goes on is never said to be disconnected, and one that does not is said to be so before it is said to
have ended.
"""

from collections.abc import Callable, Collection, Iterable, Sequence

import msgspec
from msgspec import Struct

from ropewalk.adapters.backends.memory.recovery import CRASHED
from ropewalk.model.journal import Row, RowKind
from ropewalk.model.session_log import SessionClosed
from ropewalk.model.sessions import SessionSnapshot
from ropewalk.ports import Clock, Journal

DOUBT_SECONDS = 10.0
"""For how long workers may come back to a store, before the sessions that lived on them count as interrupted."""

_BEGINNINGS = frozenset({RowKind.CONNECTED, RowKind.RESTORED})
_ENDS = frozenset({RowKind.DISCONNECTED, RowKind.ENDED})


class _Doubt(Struct, frozen=True):
    """`over`: what is given out as expired if the session is gone. `unknown`: the store never knew of it, so that nobody else
    says that it has ended."""

    until: float
    row: Row
    over: SessionSnapshot | None = None
    unknown: bool = False


class SessionDoubts:
    """Writes the rows of all workers, and knows from them which sessions each has. `kept` tells for how long a session is kept
    that lived on a worker, None for one that the store does not know; `end` gives one out as expired."""

    def __init__(
        self,
        journal: Journal,
        clock: Clock,
        kept: Callable[[str], float | None],
        end: Callable[[str, SessionSnapshot], None],
    ) -> None:
        self._journal = journal
        self._clock = clock
        self._kept = kept
        self._end = end
        self._sids: dict[str, set[str]] = {}  # by worker
        self._doubted: dict[str, _Doubt] = {}  # the oldest first

    def note(self, worker: str, rows: Sequence[Row]) -> None:
        sids = self._sids.setdefault(worker, set())
        earlier: list[Row] = []
        for row in rows:
            if row.kind in _BEGINNINGS:
                sids.add(row.sid)
            elif row.kind in _ENDS:
                sids.discard(row.sid)
                doubt = self._doubted.pop(row.sid, None)
                if doubt is not None and row.kind is RowKind.ENDED:
                    earlier.append(doubt.row)
        self._journal.write_nowait([*earlier, *rows])

    def claim(self, worker: str, sids: Collection[str]) -> None:
        """It has come back with these."""
        self._sids[worker] = set(sids)
        for sid in sids:
            self._doubted.pop(sid, None)

    def lost(self, worker: str) -> None:
        """Its connection is gone. It may live, and come back."""
        now = self._clock()
        for sid in sorted(self._sids.pop(worker, ())):
            kept = self._kept(sid)
            detail = msgspec.json.encode(SessionClosed(bool(kept), CRASHED, followed=True)).decode()
            row = Row(RowKind.DISCONNECTED, sid, now, sid=sid, detail=detail)
            self._doubted[sid] = _Doubt(now + DOUBT_SECONDS, row, unknown=kept is None)

    def recovered(self, rows: Iterable[Row], over: dict[str, SessionSnapshot]) -> None:
        """Sessions that were connected when the store was lost, by the rows that say that they no longer are."""
        until = self._clock() + DOUBT_SECONDS
        for row in rows:
            self._doubted[row.sid] = _Doubt(until, row, over.get(row.sid))

    def settle(self, at_once: bool = False) -> None:
        now, rows = self._clock(), []
        while self._doubted:
            sid, doubt = next(iter(self._doubted.items()))
            if doubt.until > now and not at_once:
                break
            del self._doubted[sid]
            rows.append(doubt.row)
            if doubt.over is not None:
                self._end(sid, doubt.over)
            elif doubt.unknown:
                rows.append(Row(RowKind.ENDED, sid, now, sid=sid))
        if rows:
            self._journal.write_nowait(rows)
