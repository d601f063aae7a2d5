"""The annals: what happens to sessions and members, told to the journal as rows. Only a remote disconnect waits for them.

A session is told when it changes. Its rows since it was last told as a whole never add up to much more than that: then it is
told as a whole again, so that neither the journal nor a recovery grows with the length of a session's life.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from ropewalk.core.lifecycle import State
from ropewalk.model.annals import Arrived, Changed, Departed, Granted, Ordered, Seated, Whole
from ropewalk.model.journal import Row, RowKind
from ropewalk.model.messages import RemoteDisconnect
from ropewalk.model.presence import Member, PresenceEvent
from ropewalk.model.sessions import AppSide, SessionSnapshot
from ropewalk.ports import Clock, Journal

if TYPE_CHECKING:
    from ropewalk.engine.session import Session
    from ropewalk.engine.subscription import Subscription

CHANGES = 16384
"""Bytes of changes, beyond the size of the session itself, after which it is told as a whole again."""


class Annals:
    """The annals of a node without a journal: nothing is built and nothing said."""

    lasting = False
    """Whether what is told outlives the process."""

    def connected(self, session: "Session") -> None: ...
    def restored(self, session: "Session", former: str) -> None: ...
    def passed(self, sid: str, snapshot: SessionSnapshot) -> None:
        """The application has let in a client that is not there, and has yet to hear that it is gone."""

    def changed(self, session: "Session", subscription: "Subscription | None" = None) -> None:
        """What the application keeps with the session, or with this subscription, is another."""

    def disconnected(self, session: "Session", kept: bool, reason: str) -> None: ...
    def revoked(self, sid: str, reason: str) -> None:
        """A session that was to be kept, or was, cannot be resumed any more."""

    def ended(self, sid: str) -> None:
        """The session is over, and whoever has to hear of it has."""

    async def ordered(self, order: RemoteDisconnect) -> None:
        """Returns when this and all that was told before it outlives a crash. Raises `Unavailable`."""

    def subscribed(self, session: "Session", subscription: "Subscription") -> None: ...
    def unsubscribed(self, session: "Session", identifier: str) -> None: ...
    def joined(self, session: "Session", stream: str, member: Member, events: Sequence[PresenceEvent]) -> None: ...
    def left(self, session: "Session", stream: str, member: Member, events: Sequence[PresenceEvent]) -> None: ...
    def expired(self, events: Sequence[PresenceEvent]) -> None: ...

    def trouble(self) -> str:
        """Why the journal cannot be written now; "" while it can."""
        return ""

    def gauges(self) -> dict[str, float]:
        return {}


class JournalAnnals(Annals):
    """Rows for every one of these. A session's rows have its sid as their key, so that they keep their order."""

    lasting = True

    def __init__(self, journal: Journal, clock: Clock) -> None:
        self._journal = journal
        self._clock = clock

    def connected(self, session: "Session") -> None:
        app = _without_secrets(session.app) if session.app is not None and session.app.known else None
        session.row_budget = CHANGES
        self._note(RowKind.CONNECTED, session, Arrived(session.ids, session.extended, session.expires_at, app))

    def restored(self, session: "Session", former: str) -> None:
        whole = self._row(RowKind.RESTORED, session.sid, _whole(session, former))
        session.row_budget = len(whole.detail) + CHANGES
        self._journal.note([whole, self._row(RowKind.ENDED, former)])

    def passed(self, sid: str, snapshot: SessionSnapshot) -> None:
        arrived = Arrived(snapshot.ids, resumable=False, app=snapshot.app and _without_secrets(snapshot.app))
        departed = Departed(kept=False, followed=True)
        self._journal.note([self._row(RowKind.CONNECTED, sid, arrived), self._row(RowKind.DISCONNECTED, sid, departed)])

    def changed(self, session: "Session", subscription: "Subscription | None" = None) -> None:
        if subscription is not None:
            self._note(RowKind.CHANGED, session, Changed(subscription=_granted(subscription)))
        elif session.app is not None:
            self._note(RowKind.CHANGED, session, Changed(app=_without_secrets(session.app)))

    def disconnected(self, session: "Session", kept: bool, reason: str) -> None:
        self._note(RowKind.DISCONNECTED, session, Departed(kept, reason, followed=True))

    def revoked(self, sid: str, reason: str) -> None:
        self._journal.note([self._row(RowKind.DISCONNECTED, sid, Departed(kept=False, reason=reason, followed=True))])

    def ended(self, sid: str) -> None:
        self._journal.note([self._row(RowKind.ENDED, sid)])

    async def ordered(self, order: RemoteDisconnect) -> None:
        detail = _text(Ordered(order.identifier, order.reconnect))
        await self._journal.write([Row(RowKind.REVOKED, order.identifier, self._clock(), detail=detail)])

    def subscribed(self, session: "Session", subscription: "Subscription") -> None:
        streams = subscription.granted.streams
        self._note(RowKind.SUBSCRIBED, session, _granted(subscription), streams[0] if len(streams) == 1 else "")

    def unsubscribed(self, session: "Session", identifier: str) -> None:
        self._note(RowKind.UNSUBSCRIBED, session, Granted(identifier))

    def joined(self, session: "Session", stream: str, member: Member, events: Sequence[PresenceEvent]) -> None:
        for event in events:
            if event.type == "leave":  # it was another member there, and the last session of it
                self._note(RowKind.LEFT, session, Seated.of(event.member, True), stream)
        told = any(event.type == "join" for event in events)
        self._note(RowKind.JOINED, session, Seated.of(member, told), stream)

    def left(self, session: "Session", stream: str, member: Member, events: Sequence[PresenceEvent]) -> None:
        self._note(RowKind.LEFT, session, Seated.of(member, bool(events)), stream)

    def expired(self, events: Sequence[PresenceEvent]) -> None:
        now = self._clock()
        rows = [
            Row(RowKind.LEFT, event.stream, now, event.stream, detail=_text(Seated.of(event.member, True))) for event in events
        ]
        if rows:
            self._journal.note(rows)

    def trouble(self) -> str:
        return self._journal.trouble()

    def gauges(self) -> dict[str, float]:
        return self._journal.gauges()

    def _note(self, kind: RowKind, session: "Session", detail: msgspec.Struct, stream: str = "") -> None:
        rows = [self._row(kind, session.sid, detail, stream)]
        session.row_budget -= len(rows[0].detail)
        if session.row_budget < 0 and session.state is State.LIVE:
            rows.append(self._row(RowKind.ALIVE, session.sid, _whole(session)))
            session.row_budget = len(rows[1].detail) + CHANGES
        self._journal.note(rows)

    def _row(self, kind: RowKind, sid: str, detail: msgspec.Struct | None = None, stream: str = "") -> Row:
        return Row(kind, sid, self._clock(), stream, sid=sid, detail="" if detail is None else _text(detail))


def _whole(session: "Session", former: str = "") -> Whole:
    snapshot = session.snapshot()
    if snapshot.app is not None:
        snapshot = replace(snapshot, app=_without_secrets(snapshot.app))
    return Whole(session.extended, snapshot, former)


def _without_secrets(app: AppSide) -> AppSide:
    """Without cookies and query strings: what lets a browser in somewhere else has no place in a file that analysts read."""
    return replace(app, url=app.url.partition("?")[0], headers={})


def _granted(subscription: "Subscription") -> Granted:
    granted = subscription.granted
    return Granted(subscription.identifier, granted.streams, granted.whisper, granted.presence, granted.state)


def _text(detail: msgspec.Struct) -> str:
    return msgspec.json.encode(detail).decode()
