"""What a journal remembers, put back into memory: streams, idempotency keys, producers, sessions and members.

The rule it keeps: time in which nobody was here to come back to does not count against those who could not come.
"""

from contextlib import suppress

import msgspec

from ropewalk.adapters.backends.memory.known import Known
from ropewalk.adapters.backends.memory.lives import Life, Lives
from ropewalk.adapters.backends.memory.sessions import MemorySessions
from ropewalk.adapters.backends.memory.shelf import Shelf
from ropewalk.core.roster import Roster
from ropewalk.model.annals import Departed
from ropewalk.model.errors import LimitReached
from ropewalk.model.journal import Recovered, Row, RowKind
from ropewalk.model.messages import Position, Registered

CRASHED = "crashed"
"""The reason of a `disconnected` row that nobody could write when it happened."""


class Recovery:
    """`streams` goes through the journal's rows, once and first; the others then say what it found."""

    def __init__(self, recovered: Recovered, now: float) -> None:
        self._recovered = recovered
        self._now = now
        self._lives = Lives()
        self._uids: list[tuple[float, str, str, Position]] = []
        self._over: list[str] = []
        self.messages = 0

    def streams(self, shelf: Shelf, known: Known) -> None:
        shelf.since = self._now
        known.shards = self._recovered.shards
        for tip in self._recovered.tips:
            shelf.read_back(tip)
        for (producer, shard), sequence in self._recovered.producers.items():
            known.producers.reach(producer, shard, sequence)
        for row in self._recovered.rows:
            if row.kind is RowKind.PUBLISH:
                self._publication(row, shelf, known)
            else:
                self._lives.add(row)
        away = max(0.0, self._now - self._recovered.newest)
        for timestamp, stream, uid, position in sorted(self._uids):  # keys expire in order, and shards came one after another
            known.uids.remember(stream, uid, position, timestamp + away)

    def sessions(self, sessions: MemorySessions, ttl: float) -> int:
        self._over = self._lives.succeeded()
        for life in self._lives.in_order():
            if life.resumable and (left := ttl - self._away(life)) > 0:
                self._keep(sessions, life, self._now + left)
            elif life.left_at is None or life.followed:  # its application has not heard of its end
                sessions.end(life.sid, life.snapshot())
            else:
                self._over.append(life.sid)
        return len(sessions)

    @staticmethod
    def _keep(sessions: MemorySessions, life: Life, deadline: float) -> None:
        try:
            sessions.keep(life.sid, life.snapshot(), deadline)
        except LimitReached:  # the limit is lower now than it was
            sessions.end(life.sid, life.snapshot())

    def members(self, roster: Roster, ttl: float) -> None:
        for life in self._lives.in_order():
            if life.members and (left := ttl - self._away(life)) > 0:
                for stream, member in life.members.items():
                    with suppress(LimitReached):  # the limit is lower now than it was
                        roster.join(stream, life.sid, member)
                roster.detach(life.sid, self._now + left)

    def interrupted(self) -> list[Row]:
        """Rows of what nobody could write when it happened: sessions that ended with the process, and those that are over."""
        detail = {each: msgspec.json.encode(Departed(each, CRASHED, followed=True)).decode() for each in (True, False)}
        crashed = [
            Row(RowKind.DISCONNECTED, life.sid, self._now, sid=life.sid, detail=detail[life.resumable])
            for life in self._lives.in_order()
            if life.left_at is None
        ]
        return crashed + [Row(RowKind.ENDED, sid, self._now, sid=sid) for sid in self._over]

    def _away(self, life: Life) -> float:
        """For how long the session had been without its connection when the journal ended."""
        return 0.0 if life.left_at is None else self._recovered.newest - life.left_at

    def _publication(self, row: Row, shelf: Shelf, known: Known) -> None:
        self.messages += 1
        shelf.place(
            Registered(row.stream, row.value, row.timestamp, row.epoch, row.offset, row.exclude_socket, row.broadcast_type)
        )
        position = Position(row.epoch, row.offset)
        if row.uid:
            self._uids.append((row.timestamp, row.stream, row.uid, position))
        if row.producer:
            known.producers.remember(row.producer, known.shard(row.stream), row.sequence, position)
