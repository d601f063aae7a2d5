"""Restores streams, idempotency keys, producers, sessions and presence members from a journal.

Invariant: time during which the server was down does not count against a TTL. Of a session only the order of its own rows
matters: they share a shard, and rows of different shards have no order.
"""

from contextlib import suppress
from typing import Protocol

import msgspec

from ropewalk.adapters.backends.memory.streams import StreamTable
from ropewalk.core.idempotency import Registrations
from ropewalk.core.roster import Roster
from ropewalk.model.errors import LimitReached
from ropewalk.model.journal import Recovered, Row, RowKind, decode_ts_producer
from ropewalk.model.messages import Position, Registered, message_fields
from ropewalk.model.presence import Member
from ropewalk.model.session_log import (
    MembershipChanged,
    SessionChanged,
    SessionCheckpoint,
    SessionClosed,
    SessionOpened,
    SubscriptionGranted,
)
from ropewalk.model.sessions import AppSide, SessionSnapshot, Subscribed

CRASHED = "crashed"
"""The reason in a `disconnected` row that is written after a crash."""

_opened = msgspec.json.Decoder(SessionOpened).decode
_changed = msgspec.json.Decoder(SessionChanged).decode
_checkpoint = msgspec.json.Decoder(SessionCheckpoint).decode
_closed = msgspec.json.Decoder(SessionClosed).decode
_granted = msgspec.json.Decoder(SubscriptionGranted).decode
_presence = msgspec.json.Decoder(MembershipChanged).decode


class RecoveredSession:
    """One session. `left_at` is None if it was connected when the journal ended. `followed`: its end would have been written
    too."""

    __slots__ = ("app", "expires_at", "followed", "ids", "left_at", "members", "names", "resumable", "sid", "subscriptions")

    def __init__(self, sid: str, resumable: bool, snapshot: SessionSnapshot) -> None:
        self.sid = sid
        self.resumable = resumable
        self.left_at: float | None = None
        self.followed = False
        self.ids = snapshot.ids
        self.expires_at = snapshot.expires_at
        self.names = snapshot.names
        self.app = snapshot.app
        self.subscriptions: dict[str, Subscribed] = dict(snapshot.subscriptions)
        self.members: dict[str, Member] = dict(snapshot.members)

    def snapshot(self) -> SessionSnapshot:
        return SessionSnapshot(self.ids, self.subscriptions, self.expires_at, self.members, self.names, self.app)


class RecoveredSessions:
    def __init__(self) -> None:
        self._sessions: dict[str, RecoveredSession] = {}
        self._succeeded: set[str] = set()

    def add(self, row: Row) -> None:
        with suppress(msgspec.DecodeError):  # written by another version: the session is not restored
            self._add(row)

    def _add(self, row: Row) -> None:
        match row.kind:
            case RowKind.CONNECTED:
                opened = _opened(row.detail)
                snapshot = SessionSnapshot(opened.ids, {}, opened.expires_at, {}, (row.sid,), opened.app)
                self._sessions[row.sid] = RecoveredSession(row.sid, opened.resumable, snapshot)
            case RowKind.RESTORED | RowKind.ALIVE:
                self._take_checkpoint(row.sid, _checkpoint(row.detail))
            case RowKind.ENDED:
                self._sessions.pop(row.sid, None)
            case _:
                # Without a first row the session is older than the rows that are read, and ended long ago.
                if (session := self._sessions.get(row.sid)) is not None:
                    _apply(session, row)

    def _take_checkpoint(self, sid: str, checkpoint: SessionCheckpoint) -> None:
        session, before = RecoveredSession(sid, checkpoint.resumable, checkpoint.snapshot), self._sessions.get(sid)
        if before is not None and before.left_at is not None:  # older versions wrote one after the end: the session stays ended
            session.left_at, session.resumable, session.followed = before.left_at, before.resumable, before.followed
        self._sessions[sid] = session
        self._succeeded.add(checkpoint.former)

    def succeeded(self) -> list[str]:
        """Sids of sessions that were restored under another sid."""
        return [sid for sid in self._sessions if sid in self._succeeded]

    def in_order(self) -> list[RecoveredSession]:
        """Sessions that were not restored under another sid, by the time they disconnected; those still connected come last."""
        left = [session for sid, session in self._sessions.items() if sid not in self._succeeded]
        return sorted(left, key=lambda session: (session.left_at is None, session.left_at or 0.0))


def _apply(session: RecoveredSession, row: Row) -> None:
    match row.kind:
        case RowKind.SUBSCRIBED:
            _subscribe(session, _granted(row.detail))
        case RowKind.UNSUBSCRIBED:
            session.subscriptions.pop(_granted(row.detail).identifier, None)
        case RowKind.JOINED:
            session.members[row.stream] = _presence(row.detail).member
        case RowKind.LEFT:
            session.members.pop(row.stream, None)
        case RowKind.CHANGED:
            changed = _changed(row.detail)
            session.app = changed.app or session.app
            if changed.subscription is not None:
                _subscribe(session, changed.subscription)
        case RowKind.DISCONNECTED:
            closed = _closed(row.detail)
            session.left_at = row.timestamp
            session.resumable = session.resumable and closed.kept
            session.followed = closed.followed


def _subscribe(session: RecoveredSession, granted: SubscriptionGranted) -> None:
    streams, state = granted.streams, granted.state
    session.subscriptions[granted.identifier] = Subscribed(streams, granted.whisper, granted.presence, state)
    if state is not None and (session.app is None or not session.app.known):
        session.app = AppSide(known=True)  # the application has answered the connection


class RecoveredInto(Protocol):
    """Where sessions are kept."""

    def __len__(self) -> int: ...
    def keep(self, sid: str, snapshot: SessionSnapshot, deadline: float) -> None:
        """Raises LimitReached."""

    def end(self, sid: str, snapshot: SessionSnapshot) -> None:
        """The session cannot be resumed; return it as expired."""


class MemoryRecovery:
    """Call `streams` first, once: it reads the rows of the journal, and the other methods use its results."""

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

    def sessions(self, sessions: RecoveredInto, ttl: float) -> int:
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
    def _keep(sessions: RecoveredInto, session: RecoveredSession, deadline: float) -> None:
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
        """The rows that the dead process could not write: of sessions that ended with it, and of sessions that have expired."""
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
            Registered(
                row.stream,
                row.value,
                row.timestamp,
                row.epoch,
                row.offset,
                row.exclude_socket,
                row.broadcast_type,
                message_fields(row.uid, decode_ts_producer(row.detail), row.key if row.key != row.stream else ""),
            )
        )
        table.assign(row.stream, row.key)
        position = Position(row.epoch, row.offset)
        if row.uid:
            self._uids.append((row.timestamp, row.stream, row.uid, position))
        if row.producer:
            registrations.producers.remember(row.producer, registrations.shard(row.stream), row.sequence, position)
