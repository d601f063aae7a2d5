"""Writes session and presence changes to the journal. Only a remote disconnect waits for the write.

A session is written when it changes. Once the rows since its last full record add up to more than that record, the full
record is written again. So neither the journal nor a recovery grows with the length of a session.
"""

from collections.abc import Iterable, Sequence

import msgspec
from msgspec.structs import replace

from ropewalk.core.lifecycle import SessionState
from ropewalk.engine.session import Session
from ropewalk.engine.subscription import Subscription
from ropewalk.model.journal import Row, RowKind
from ropewalk.model.messages import RemoteDisconnect
from ropewalk.model.presence import Member, PresenceEvent
from ropewalk.model.session_log import (
    DisconnectRequested,
    MembershipChanged,
    SessionChanged,
    SessionCheckpoint,
    SessionClosed,
    SessionOpened,
    SubscriptionGranted,
)
from ropewalk.model.sessions import AppSide, SessionSnapshot
from ropewalk.ports import Clock, Journal

AT_ONCE = 500
"""Rows in one write."""

CHANGES = 16384
"""Bytes of changes, beyond the size of the session itself, after which its full record is written again."""


class SessionLog:
    """The session log of a node without a journal: does nothing."""

    lasting = False
    """Whether the log outlives the process."""

    def connected(self, session: "Session") -> None: ...
    def restored(self, session: "Session", former: str) -> None: ...
    def passed(self, sid: str, snapshot: SessionSnapshot) -> None:
        """The application accepted a client that is gone already. Its end is reported to the application."""

    def changed(self, session: "Session", subscription: "Subscription | None" = None) -> None:
        """The application changed its state of the session, or of this subscription."""

    def disconnected(self, session: "Session", kept: bool, reason: str) -> None: ...
    def revoked(self, sid: str, reason: str) -> None:
        """A kept session can no longer be resumed."""

    def ended(self, sid: str) -> None:
        """The session has ended, after the Disconnect call if one was needed."""

    async def disconnect_requested(self, request: RemoteDisconnect) -> None:
        """Returns when this row and all rows before it survive a crash. Raises `Unavailable`."""

    def subscribed(self, session: "Session", subscription: "Subscription") -> None: ...
    def unsubscribed(self, session: "Session", identifier: str) -> None: ...
    def joined(self, session: "Session", stream: str, member: Member, events: Sequence[PresenceEvent]) -> None: ...
    def left(self, session: "Session", stream: str, member: Member, events: Sequence[PresenceEvent]) -> None: ...
    def expired(self, events: Sequence[PresenceEvent]) -> None: ...

    def rewrite(self, sessions: Iterable["Session"]) -> None:
        """Write these live sessions again: the process that writes the journal may have lost their rows."""

    async def finish(self) -> None:
        """Hand over the waiting rows at shutdown, if possible."""

    def health(self) -> str:
        """Why the journal cannot be written now; "" while it can."""
        return ""

    def gauges(self) -> dict[str, float]:
        return {}


class JournalSessionLog(SessionLog):
    """Writes a row for each change. A session's rows have its sid as their key, so that they keep their order."""

    lasting = True

    def __init__(self, journal: Journal, clock: Clock) -> None:
        self._journal = journal
        self._clock = clock

    def connected(self, session: "Session") -> None:
        app = _without_secrets(session.app) if session.app is not None and session.app.known else None
        session.row_budget = CHANGES
        self._note(RowKind.CONNECTED, session, SessionOpened(session.ids, session.extended, session.expires_at, app))

    def restored(self, session: "Session", former: str) -> None:
        checkpoint = self._row(RowKind.RESTORED, session.sid, _checkpoint(session, former))
        session.row_budget = len(checkpoint.detail) + CHANGES
        self._journal.write_nowait([checkpoint, self._row(RowKind.ENDED, former)])

    def passed(self, sid: str, snapshot: SessionSnapshot) -> None:
        opened = SessionOpened(snapshot.ids, resumable=False, app=snapshot.app and _without_secrets(snapshot.app))
        closed = SessionClosed(kept=False, followed=True)
        self._journal.write_nowait([self._row(RowKind.CONNECTED, sid, opened), self._row(RowKind.DISCONNECTED, sid, closed)])

    def changed(self, session: "Session", subscription: "Subscription | None" = None) -> None:
        if subscription is not None:
            self._note(RowKind.CHANGED, session, SessionChanged(subscription=_granted(subscription)))
        elif session.app is not None:
            self._note(RowKind.CHANGED, session, SessionChanged(app=_without_secrets(session.app)))

    def disconnected(self, session: "Session", kept: bool, reason: str) -> None:
        self._note(RowKind.DISCONNECTED, session, SessionClosed(kept, reason, followed=True))

    def revoked(self, sid: str, reason: str) -> None:
        self._journal.write_nowait(
            [self._row(RowKind.DISCONNECTED, sid, SessionClosed(kept=False, reason=reason, followed=True))]
        )

    def ended(self, sid: str) -> None:
        self._journal.write_nowait([self._row(RowKind.ENDED, sid)])

    async def disconnect_requested(self, request: RemoteDisconnect) -> None:
        detail = _text(DisconnectRequested(request.identifier, request.reconnect))
        await self._journal.write([Row(RowKind.REVOKED, request.identifier, self._clock(), detail=detail)])

    def subscribed(self, session: "Session", subscription: "Subscription") -> None:
        streams = subscription.granted.streams
        self._note(RowKind.SUBSCRIBED, session, _granted(subscription), streams[0] if len(streams) == 1 else "")

    def unsubscribed(self, session: "Session", identifier: str) -> None:
        self._note(RowKind.UNSUBSCRIBED, session, SubscriptionGranted(identifier))

    def joined(self, session: "Session", stream: str, member: Member, events: Sequence[PresenceEvent]) -> None:
        for event in events:
            if event.type == "leave":  # the session was the last one of another member there
                self._note(RowKind.LEFT, session, MembershipChanged.of(event.member, True), stream)
        announced = any(event.type == "join" for event in events)
        self._note(RowKind.JOINED, session, MembershipChanged.of(member, announced), stream)

    def left(self, session: "Session", stream: str, member: Member, events: Sequence[PresenceEvent]) -> None:
        self._note(RowKind.LEFT, session, MembershipChanged.of(member, bool(events)), stream)

    def expired(self, events: Sequence[PresenceEvent]) -> None:
        now = self._clock()
        rows = [
            Row(RowKind.LEFT, event.stream, now, event.stream, detail=_text(MembershipChanged.of(event.member, True)))
            for event in events
        ]
        if rows:
            self._journal.write_nowait(rows)

    def health(self) -> str:
        return self._journal.health()

    def gauges(self) -> dict[str, float]:
        return self._journal.gauges()

    def _note(self, kind: RowKind, session: "Session", detail: msgspec.Struct, stream: str = "") -> None:
        rows = [self._row(kind, session.sid, detail, stream)]
        session.row_budget -= len(rows[0].detail)
        if session.row_budget < 0 and session.state is SessionState.LIVE:
            rows.append(self._row(RowKind.ALIVE, session.sid, _checkpoint(session)))
            session.row_budget = len(rows[1].detail) + CHANGES
        self._journal.write_nowait(rows)

    def _row(self, kind: RowKind, sid: str, detail: msgspec.Struct | None = None, stream: str = "") -> Row:
        return Row(kind, sid, self._clock(), stream, sid=sid, detail="" if detail is None else _text(detail))


class ForwardedSessionLog(JournalSessionLog):
    """The session log of a worker whose store process has the journal. The store process also writes the remote disconnects,
    because every worker receives them."""

    async def disconnect_requested(self, request: RemoteDisconnect) -> None: ...

    def rewrite(self, sessions: Iterable["Session"]) -> None:
        """Replaces the rows that a crashed store process had not written: each row contains the whole session."""
        rows = [self._row(RowKind.ALIVE, session.sid, _checkpoint(session)) for session in sessions]
        for begin in range(0, len(rows), AT_ONCE):
            self._journal.write_nowait(rows[begin : begin + AT_ONCE])


def _checkpoint(session: "Session", former: str = "") -> SessionCheckpoint:
    snapshot = session.snapshot()
    if snapshot.app is not None:
        snapshot = replace(snapshot, app=_without_secrets(snapshot.app))
    return SessionCheckpoint(session.extended, snapshot, former)


def _without_secrets(app: AppSide) -> AppSide:
    """Without cookies and query strings: credentials do not belong in a file that analysts read."""
    return replace(app, url=app.url.partition("?")[0], headers={})


def _granted(subscription: "Subscription") -> SubscriptionGranted:
    granted = subscription.granted
    return SubscriptionGranted(subscription.identifier, granted.streams, granted.whisper, granted.presence, granted.state)


def _text(detail: msgspec.Struct) -> str:
    return msgspec.json.encode(detail).decode()
