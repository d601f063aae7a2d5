"""Sessions read back from the journal: the last full record of each, and the changes after it.

Invariant: only the order of one session's own rows matters. They share a shard; rows of different shards have no order.
"""

from contextlib import suppress

import msgspec

from ropewalk.model.journal import Row, RowKind
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
        if before is not None and before.left_at is not None:  # older versions wrote one after the end: it revives nobody
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
        session.app = AppSide(known=True)  # the application has answered, whatever else was said to it
