"""Restores streams, idempotency keys, producers, sessions and presence members from a journal.

Invariant: time during which the server was down does not count against a TTL.
"""

from contextlib import suppress

import msgspec

from ropewalk.adapters.backends.memory.recovered_sessions import RecoveredSession, RecoveredSessions
from ropewalk.adapters.backends.memory.registrations import Registrations
from ropewalk.adapters.backends.memory.sessions import MemorySessions
from ropewalk.adapters.backends.memory.stream_table import StreamTable
from ropewalk.core.roster import Roster
from ropewalk.model.errors import LimitReached
from ropewalk.model.journal import Recovered, Row, RowKind
from ropewalk.model.messages import Position, Registered
from ropewalk.model.session_log import SessionClosed

CRASHED = "crashed"
"""The reason in a `disconnected` row that is written after a crash."""


class MemoryRecovery:
    """`streams` goes through the journal's rows, once and first; the others then say what it found."""

    def __init__(self, recovered: Recovered, now: float) -> None:
        self._recovered = recovered
        self._now = now
        self._recovered_sessions = RecoveredSessions()
        self._uids: list[tuple[float, str, str, Position]] = []
        self._over: list[str] = []
        self.messages = 0

    def streams(self, table: StreamTable, registrations: Registrations) -> None:
        table.since = self._now
        registrations.shards = self._recovered.shards
        for tip in self._recovered.tips:
            table.read_back(tip)
        for (producer, shard), sequence in self._recovered.producers.items():
            registrations.producers.reach(producer, shard, sequence)
        for row in self._recovered.rows:
            if row.kind is RowKind.PUBLISH:
                self._publication(row, table, registrations)
            else:
                self._recovered_sessions.add(row)
        away = max(0.0, self._now - self._recovered.newest)
        for timestamp, stream, uid, position in sorted(self._uids):  # keys expire in order, and shards came one after another
            registrations.uids.remember(stream, uid, position, timestamp + away)

    def sessions(self, sessions: MemorySessions, ttl: float) -> int:
        self._over = self._recovered_sessions.succeeded()
        for session in self._recovered_sessions.in_order():
            if session.resumable and (left := ttl - self._away(session)) > 0:
                self._keep(sessions, session, self._now + left)
            elif session.left_at is None or session.followed:  # its application has not heard of its end
                sessions.end(session.sid, session.snapshot())
            else:
                self._over.append(session.sid)
        return len(sessions)

    @staticmethod
    def _keep(sessions: MemorySessions, session: RecoveredSession, deadline: float) -> None:
        try:
            sessions.keep(session.sid, session.snapshot(), deadline)
        except LimitReached:  # the limit is lower now than it was
            sessions.end(session.sid, session.snapshot())

    def members(self, roster: Roster, ttl: float) -> None:
        for session in self._recovered_sessions.in_order():
            if session.members and (left := ttl - self._away(session)) > 0:
                for stream, member in session.members.items():
                    with suppress(LimitReached):  # the limit is lower now than it was
                        roster.join(stream, session.sid, member)
                roster.detach(session.sid, self._now + left)

    def interrupted(self) -> list[Row]:
        """Rows of what nobody could write when it happened: sessions that ended with the process, and those that are over."""
        detail = {each: msgspec.json.encode(SessionClosed(each, CRASHED, followed=True)).decode() for each in (True, False)}
        crashed = [
            Row(RowKind.DISCONNECTED, session.sid, self._now, sid=session.sid, detail=detail[session.resumable])
            for session in self._recovered_sessions.in_order()
            if session.left_at is None
        ]
        return crashed + [Row(RowKind.ENDED, sid, self._now, sid=sid) for sid in self._over]

    def _away(self, session: RecoveredSession) -> float:
        """For how long the session had been without its connection when the journal ended."""
        return 0.0 if session.left_at is None else self._recovered.newest - session.left_at

    def _publication(self, row: Row, table: StreamTable, registrations: Registrations) -> None:
        if table.overtaken(row.stream, row.key, row.timestamp):
            return
        self.messages += 1
        table.place(
            Registered(row.stream, row.value, row.timestamp, row.epoch, row.offset, row.exclude_socket, row.broadcast_type)
        )
        table.assign(row.stream, row.key)
        position = Position(row.epoch, row.offset)
        if row.uid:
            self._uids.append((row.timestamp, row.stream, row.uid, position))
        if row.producer:
            registrations.producers.remember(row.producer, registrations.shard(row.stream), row.sequence, position)
