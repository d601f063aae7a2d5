"""Presence commands. The store keeps the presence sets, and publishes their join and leave events to the feed."""

import logging
from collections.abc import Callable

from ropewalk.core.stats import Stats
from ropewalk.engine.session import Session
from ropewalk.engine.session_log import SessionLog
from ropewalk.model.application import MEMBER_KEY
from ropewalk.model.commands import Join, Leave, Presence
from ropewalk.model.errors import RopewalkError, Unavailable
from ropewalk.model.limits import Limits
from ropewalk.model.presence import Member, PresenceEvent, PresencePage
from ropewalk.model.refusals import Refusal
from ropewalk.ports import PresenceStore

logger = logging.getLogger("ropewalk.presence")

FIRST_PAGE_RECORDS, MAX_PAGE_RECORDS = 200, 5000
"""Records read for one answer: the first number, then the second if all of those fit."""

MAX_ANSWER_BYTES = 131_072  # of the records in one answer, and at most this fraction of the outbox limit:
PENDING_SHARE = 4


class PresenceCommands:
    """Joins and leaves presence sets in the store, and writes the changes to the session log."""

    def __init__(
        self,
        store: PresenceStore,
        session_log: SessionLog,
        limits: Limits,
        stats: Stats,
        reconcile: Callable[["Session", str], None] | None = None,
    ) -> None:
        """`reconcile`: repeats a failed change of a shared store in the background."""
        self._store = store
        self._reconcile = reconcile
        self._session_log = session_log
        self._limits = limits
        self._stats = stats

    async def handle(self, session: "Session", command: Presence | Join | Leave) -> bool:
        match command:
            case Presence():
                return await self._send_members(session, command)
            case Join(identifier, member):
                return await self.join(session, identifier, member)
            case Leave(identifier):
                return await self.leave(session, identifier)

    async def _send_members(self, session: "Session", query: Presence) -> bool:
        """Send the members in one bounded answer. It is written at once, even to a client that does not read."""
        identifier, records = query.identifier, query.return_records
        stream = _stream(session, identifier)
        page = None
        if stream:
            try:
                page = await self._page(session, stream, query)
            except RopewalkError as error:
                logger.warning("presence unavailable", extra={"reason": str(error)})
        answer = session.link.codec.presence(identifier, page, records)
        session.link.send(answer)
        session.charge(len(answer))
        return page is not None

    async def _page(self, session: "Session", stream: str, query: Presence) -> PresencePage:
        """Read as many members as fit into one answer."""
        store, fitting = self._store, session.link.codec.fitting
        room = min(MAX_ANSWER_BYTES, self._limits.max_pending // PENDING_SHARE)
        page = await store.members(stream, query.after, FIRST_PAGE_RECORDS if query.return_records else 0)
        fits = fitting(page, room)
        if fits is not page or page.next_id is None:
            return fits
        return fitting(await store.members(stream, query.after, MAX_PAGE_RECORDS), room)

    async def join(self, session: "Session", identifier: str, member: Member) -> bool:
        stream, longest = _stream(session, identifier), self._limits.max_member_info
        if not stream or member.max_field_bytes() > longest:
            return False
        if (declared := _declared_member(session, identifier)) and declared != member.id:
            self._stats.refusals[Refusal.MEMBER_ID] += 1
            logger.info(
                "join refused", extra={"session": session.tag, "reason": "the application knows the client by another id"}
            )
            return False
        session.charge(2 * len(member.id) + len(member.info))  # bytes that the join sends to others
        return await self.join_stream(session, stream, member)

    async def join_stream(self, session: "Session", stream: str, member: Member) -> bool:
        events: list[PresenceEvent] = []
        before = (session.members or {}).get(stream)
        # Set before the store call: a node that takes the session over meanwhile joins again.
        session.members = {**(session.members or {}), stream: member}
        try:
            events = await self._store.join(stream, session.sid, member)
        except RopewalkError as error:
            logger.debug("join refused", extra={"session": session.tag, "reason": str(error)})
            if not self._reconcile_later(session, stream, error):
                others = {other: held for other, held in session.members.items() if other != stream}
                session.members = others if before is None else {**others, stream: before}
                return False
        self._session_log.joined(session, stream, member, events)
        return True

    def _reconcile_later(self, session: "Session", stream: str, error: RopewalkError) -> bool:
        """Repeat a failed change in the background. Returns False for other errors, and for a store of this process."""
        if self._reconcile is None or not isinstance(error, Unavailable):
            return False
        self._reconcile(session, stream)
        return True

    async def adopt(self, session: "Session", former: str) -> dict[str, Member]:
        """Move the memberships of the former session to this one, and return them by stream. Empty if the store fails."""
        try:
            return await self._store.adopt(former, session.sid)
        except Unavailable as error:
            logger.warning("presence of a resumed session cannot be restored", extra={"reason": str(error)})
            return {}

    async def leave(self, session: "Session", identifier: str) -> bool:
        return await self.leave_stream(session, _stream(session, identifier))

    async def leave_stream(self, session: "Session", stream: str) -> bool:
        """Leave a presence set. If a store of this process fails, the session stays until it ends or leaves again."""
        if not session.members or stream not in session.members:
            return False
        member = session.members[stream]
        events: list[PresenceEvent] = []
        try:
            events = await self._store.leave(stream, session.sid)
        except Unavailable as error:
            logger.warning("leave failed", extra={"session": session.tag, "reason": str(error)})
            if not self._reconcile_later(session, stream, error):
                return False
        session.members = {other: held for other, held in session.members.items() if other != stream}
        self._session_log.left(session, stream, member, events)
        return True


def _declared_member(session: "Session", identifier: str) -> str:
    """The member id set by the application, or "" if the client may choose."""
    subscription = session.subscriptions.get(identifier)
    state = subscription.granted.state if subscription is not None else None
    return state.get(MEMBER_KEY, "") if state else ""


def _stream(session: "Session", identifier: str) -> str:
    subscription = session.subscriptions.get(identifier)
    return subscription.granted.presence if subscription is not None else ""
