"""Presence commands. The store keeps the presence sets, and enters what happens in them into the feed."""

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

FIRST_PAGE_RECORDS, MAX_PAGE_RECORDS = (
    200,
    5000,
)  # that are asked of the store for one answer: more only where the first ones fitted
MAX_ANSWER_BYTES = 131_072  # of the records in one answer, and never more than this share of what may wait for a connection:
PENDING_SHARE = 4


class PresenceCommands:
    """What sessions do in presence sets, kept by a store and written to the session log."""

    def __init__(
        self,
        store: PresenceStore,
        session_log: SessionLog,
        limits: Limits,
        stats: Stats,
        settle: Callable[["Session", str], None] | None = None,
    ) -> None:
        """`settle`: brings to a shared store later what it cannot do now."""
        self._store = store
        self._settle = settle
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
        """As many members as an answer may hold."""
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
        session.charge(2 * len(member.id) + len(member.info))  # what it makes the server send to others
        return await self.join_stream(session, stream, member)

    async def join_stream(self, session: "Session", stream: str, member: Member) -> bool:
        events: list[PresenceEvent] = []
        before = (session.members or {}).get(stream)
        # Before the store has it: whoever takes the session over meanwhile joins again.
        session.members = {**(session.members or {}), stream: member}
        try:
            events = await self._store.join(stream, session.sid, member)
        except RopewalkError as error:
            logger.debug("join refused", extra={"session": session.tag, "reason": str(error)})
            if not self._settles(session, stream, error):
                others = {other: held for other, held in session.members.items() if other != stream}
                session.members = others if before is None else {**others, stream: before}
                return False
        self._session_log.joined(session, stream, member, events)
        return True

    def _settles(self, session: "Session", stream: str, error: RopewalkError) -> bool:
        """Whether a shared store will have what it could not do, once it answers again."""
        if self._settle is None or not isinstance(error, Unavailable):
            return False
        self._settle(session, stream)
        return True

    async def adopt(self, session: "Session", former: str) -> dict[str, Member]:
        """What a session held that this one continues, by stream: it holds it now. Empty where the store fails."""
        try:
            return await self._store.adopt(former, session.sid)
        except Unavailable as error:
            logger.warning("what a session held in presence sets cannot be adopted", extra={"reason": str(error)})
            return {}

    async def leave(self, session: "Session", identifier: str) -> bool:
        return await self.leave_stream(session, _stream(session, identifier))

    async def leave_stream(self, session: "Session", stream: str) -> bool:
        """Where a store of this process alone fails, the session stays until it ends or leaves again."""
        if not session.members or stream not in session.members:
            return False
        member = session.members[stream]
        events: list[PresenceEvent] = []
        try:
            events = await self._store.leave(stream, session.sid)
        except Unavailable as error:
            logger.warning("leave failed", extra={"session": session.tag, "reason": str(error)})
            if not self._settles(session, stream, error):
                return False
        session.members = {other: held for other, held in session.members.items() if other != stream}
        self._session_log.left(session, stream, member, events)
        return True


def _declared_member(session: "Session", identifier: str) -> str:
    """ "" where the client may choose."""
    subscription = session.subscriptions.get(identifier)
    state = subscription.granted.state if subscription is not None else None
    return state.get(MEMBER_KEY, "") if state else ""


def _stream(session: "Session", identifier: str) -> str:
    subscription = session.subscriptions.get(identifier)
    return subscription.granted.presence if subscription is not None else ""
