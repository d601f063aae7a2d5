"""The annals: what happens to sessions and members, told to the journal as rows. Nobody waits for them."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from ropewalk.model.annals import Arrived, Departed, Granted, Seated, Whole
from ropewalk.model.journal import Row, RowKind
from ropewalk.model.presence import Member, PresenceEvent
from ropewalk.ports import Clock, Journal

if TYPE_CHECKING:
    from ropewalk.engine.session import Session
    from ropewalk.engine.subscription import Subscription

RENEWAL = 60
"""Seconds of one round in which every session that goes on is told again. Two rounds bring each of them once at the least."""


class Annals:
    """The annals of a node without a journal: nothing is built and nothing said."""

    def connected(self, session: "Session") -> None: ...
    def restored(self, session: "Session", former: str) -> None: ...
    def disconnected(self, session: "Session", kept: bool, reason: str) -> None: ...
    def subscribed(self, session: "Session", subscription: "Subscription") -> None: ...
    def unsubscribed(self, session: "Session", identifier: str) -> None: ...
    def joined(self, session: "Session", stream: str, member: Member, events: Sequence[PresenceEvent]) -> None: ...
    def left(self, session: "Session", stream: str, member: Member, events: Sequence[PresenceEvent]) -> None: ...
    def expired(self, events: Sequence[PresenceEvent]) -> None: ...
    def changed(self, session: "Session") -> None:
        """What the application keeps with the session is another."""

    def renew(self, sessions: Mapping[str, "Session"]) -> None:
        """Called about once a second: tell again the share of the sessions that is due."""

    def trouble(self) -> str:
        """Why the journal cannot be written now; "" while it can."""
        return ""

    def gauges(self) -> dict[str, float]:
        return {}


class JournalAnnals(Annals):
    """Rows for every one of these. A session's rows have its sid as their key, so that they keep their order."""

    def __init__(self, journal: Journal, clock: Clock) -> None:
        self._journal = journal
        self._clock = clock
        self._round: list[str] = []  # sids to be told again
        self._second = 0  # of the round

    def connected(self, session: "Session") -> None:
        self._note(RowKind.CONNECTED, session, Arrived(session.ids, session.extended, session.expires_at))

    def restored(self, session: "Session", former: str) -> None:
        self._note(RowKind.RESTORED, session, _whole(session, former))

    def changed(self, session: "Session") -> None:
        self._note(RowKind.ALIVE, session, _whole(session))

    def disconnected(self, session: "Session", kept: bool, reason: str) -> None:
        self._note(RowKind.DISCONNECTED, session, Departed(kept, reason))

    def subscribed(self, session: "Session", subscription: "Subscription") -> None:
        granted = subscription.granted
        detail = Granted(subscription.identifier, granted.streams, granted.whisper, granted.presence, granted.state)
        self._note(RowKind.SUBSCRIBED, session, detail, granted.streams[0] if len(granted.streams) == 1 else "")

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

    def renew(self, sessions: Mapping[str, "Session"]) -> None:
        if self._second == 0:
            self._round = list(sessions)
        count, second = len(self._round), self._second
        self._second = (second + 1) % RENEWAL
        share = self._round[count * second // RENEWAL : count * (second + 1) // RENEWAL]
        due = [session for sid in share if (session := sessions.get(sid)) and (session.extended or session.members)]
        if due:
            self._journal.note([self._row(RowKind.ALIVE, each, _whole(each)) for each in due])

    def trouble(self) -> str:
        return self._journal.trouble()

    def gauges(self) -> dict[str, float]:
        return self._journal.gauges()

    def _note(self, kind: RowKind, session: "Session", detail: msgspec.Struct, stream: str = "") -> None:
        self._journal.note([self._row(kind, session, detail, stream)])

    def _row(self, kind: RowKind, session: "Session", detail: msgspec.Struct, stream: str = "") -> Row:
        return Row(kind, session.sid, self._clock(), stream, sid=session.sid, detail=_text(detail))


def _whole(session: "Session", former: str = "") -> Whole:
    """Without cookies and query strings: what lets a browser in somewhere else has no place in a file that analysts read."""
    snapshot = session.snapshot()
    if snapshot.app is not None:
        bare = replace(snapshot.app, url=snapshot.app.url.partition("?")[0], headers={})
        snapshot = replace(snapshot, app=bare)
    return Whole(session.extended, snapshot, former)


def _text(detail: msgspec.Struct) -> str:
    return msgspec.json.encode(detail).decode()
