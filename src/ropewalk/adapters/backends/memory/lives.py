"""Sessions as the journal's rows tell them: from each session's last full account on, what was added and what ended.

The rule it keeps: only the order of one session's own rows counts, for they share a shard and different shards do not.
"""

from contextlib import suppress

import msgspec

from ropewalk.model.annals import Arrived, Changed, Departed, Granted, Seated, Whole
from ropewalk.model.journal import Row, RowKind
from ropewalk.model.presence import Member
from ropewalk.model.sessions import AppSide, SessionSnapshot, Subscribed

_arrived = msgspec.json.Decoder(Arrived).decode
_changed = msgspec.json.Decoder(Changed).decode
_whole = msgspec.json.Decoder(Whole).decode
_departed = msgspec.json.Decoder(Departed).decode
_granted = msgspec.json.Decoder(Granted).decode
_seated = msgspec.json.Decoder(Seated).decode


class Life:
    """One session. `left_at` is None while it had its connection. `followed`: its end would have been written, too."""

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


class Lives:
    def __init__(self) -> None:
        self._lives: dict[str, Life] = {}
        self._succeeded: set[str] = set()

    def add(self, row: Row) -> None:
        with suppress(msgspec.DecodeError):  # as another version wrote it: that session begins anew
            self._add(row)

    def _add(self, row: Row) -> None:
        match row.kind:
            case RowKind.CONNECTED:
                arrived = _arrived(row.detail)
                snapshot = SessionSnapshot(arrived.ids, {}, arrived.expires_at, {}, (row.sid,), arrived.app)
                self._lives[row.sid] = Life(row.sid, arrived.resumable, snapshot)
            case RowKind.RESTORED | RowKind.ALIVE:
                self._take_whole(row.sid, _whole(row.detail))
            case RowKind.ENDED:
                self._lives.pop(row.sid, None)
            case _:
                # Without a beginning the session is older than what is looked at, and long over.
                if (life := self._lives.get(row.sid)) is not None:
                    _go_on(life, row)

    def _take_whole(self, sid: str, whole: Whole) -> None:
        life, before = Life(sid, whole.resumable, whole.snapshot), self._lives.get(sid)
        if before is not None and before.left_at is not None:  # older versions wrote one after the end: it revives nobody
            life.left_at, life.resumable, life.followed = before.left_at, before.resumable, before.followed
        self._lives[sid] = life
        self._succeeded.add(whole.former)

    def succeeded(self) -> list[str]:
        """Sids that go on under another one."""
        return [sid for sid in self._lives if sid in self._succeeded]

    def in_order(self) -> list[Life]:
        """Those whom nobody succeeded; who left first comes first, who was connected to the end last."""
        left = [life for sid, life in self._lives.items() if sid not in self._succeeded]
        return sorted(left, key=lambda life: (life.left_at is None, life.left_at or 0.0))


def _go_on(life: Life, row: Row) -> None:
    match row.kind:
        case RowKind.SUBSCRIBED:
            _subscribe(life, _granted(row.detail))
        case RowKind.UNSUBSCRIBED:
            life.subscriptions.pop(_granted(row.detail).identifier, None)
        case RowKind.JOINED:
            life.members[row.stream] = _seated(row.detail).member
        case RowKind.LEFT:
            life.members.pop(row.stream, None)
        case RowKind.CHANGED:
            changed = _changed(row.detail)
            life.app = changed.app or life.app
            if changed.subscription is not None:
                _subscribe(life, changed.subscription)
        case RowKind.DISCONNECTED:
            departed = _departed(row.detail)
            life.left_at = row.timestamp
            life.resumable = life.resumable and departed.kept
            life.followed = departed.followed


def _subscribe(life: Life, granted: Granted) -> None:
    streams, state = granted.streams, granted.state
    life.subscriptions[granted.identifier] = Subscribed(streams, granted.whisper, granted.presence, state)
    if state is not None and (life.app is None or not life.app.known):
        life.app = AppSide(known=True)  # the application has answered, whatever else was said to it
