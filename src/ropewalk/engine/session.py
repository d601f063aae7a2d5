"""A session: one client over one connection. Commands are handled strictly one after another; the end happens once.

What a session may do is decided in `session_opening`, `commands` and `joins`. The session keeps the order and the bounds.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Protocol

import msgspec

from ropewalk.core.lifecycle import LifecycleEvent, SessionState, advance
from ropewalk.core.rules import Rulebook
from ropewalk.core.stats import Stats
from ropewalk.engine import trace
from ropewalk.engine.hub import Group
from ropewalk.engine.inbox import CommandRate, Inbox
from ropewalk.engine.link import Link
from ropewalk.engine.metered_link import MeteredLink
from ropewalk.engine.subscription import Subscription
from ropewalk.model import closing as closings
from ropewalk.model.closing import Closing
from ropewalk.model.commands import Command
from ropewalk.model.errors import MalformedFrame, Unavailable
from ropewalk.model.limits import Limits
from ropewalk.model.messages import Position, RemoteDisconnect
from ropewalk.model.presence import Member
from ropewalk.model.refusals import Refusal
from ropewalk.model.sessions import AppSide, ConnectRequest, SessionSnapshot
from ropewalk.ports import Clock, Connection
from ropewalk.protocol.codec import SessionCodec

logger = logging.getLogger("ropewalk.session")

LONGEST_TIMER = 86400.0  # an expiry further away is looked at again then; timers of years overflow

# After these the client may come back with its sid; after the others the application or the token has spoken.
RESUMABLE = (closings.TOO_SLOW, closings.NO_PONG, closings.SERVER_RESTART, closings.INTERNAL_ERROR, closings.TAKEN_OVER)


Beat = tuple[float, int]
"""Interval of pings in seconds, and units of their timestamp per second: what clients may choose."""


class SessionHost(Protocol):
    """What a session asks of the node that it is on, and what it tells it."""

    @property
    def limits(self) -> Limits: ...
    @property
    def rules(self) -> Rulebook: ...
    @property
    def stats(self) -> Stats: ...
    @property
    def clock(self) -> Clock: ...

    def spawn(self, work: Coroutine[object, None, None]) -> asyncio.Task[None]: ...

    def begin(self, work: Callable[[], Coroutine[object, None, None]]) -> None:
        """In the next turn of the event loop."""

    async def handle(self, session: "Session", command: Command) -> bool:
        """True if it was granted."""

    def revocation(self, session: "Session", ids: str) -> RemoteDisconnect | None:
        """The order that came for these ids while the session was opening, if any."""

    def accepted(self, session: "Session") -> None:
        """It lives."""

    def opened(self, session: "Session") -> None:
        """It was welcomed, or refused."""

    def heard(self, session: "Session") -> None:
        """Its client sent something."""

    def paused(self, session: "Session") -> None:
        """Its client does not take what was written."""

    def dropped(self, session: "Session", subscription: Subscription) -> None:
        """Nothing of this subscription is to be delivered any more."""

    def revoked(self, session: "Session", reason: str) -> None:
        """It will not be kept although it would have been."""

    def disconnected(self, session: "Session") -> None:
        """Its connection is gone."""

    def departing(self, session: "Session", reason: str) -> bool:
        """It lived, and leaves. False if there is nothing more to do for it."""

    async def depart(self, session: "Session") -> None:
        """Keep it, or tell the application that it is over."""

    def departed(self, session: "Session") -> None:
        """That is done, or failed."""


class Session:
    """The `SessionHandle` of its transport. `members` is what it holds in presence sets, None for the many that never join one.

    `keeping`: its connection is gone, and it will be kept for resuming unless something speaks against it. `leaving` is the
    task of its departure. `row_budget`: bytes of changes that the journal takes before it gets the whole session again.
    """

    __slots__ = (
        "_command_rate",
        "_connection",
        "_expiry",
        "_handling",
        "_host",
        "_quiet",
        "_rate",
        "_working",
        "app",
        "beat",
        "expires_at",
        "extended",
        "ids",
        "inbox",
        "keeping",
        "leaving",
        "link",
        "max_subscriptions",
        "members",
        "opening",
        "returning",
        "row_budget",
        "sid",
        "state",
        "subscriptions",
        "takes_reconnect_in",
    )

    def __init__(
        self,
        host: SessionHost,
        sid: str,
        connection: Connection,
        codec: SessionCodec,
        request: ConnectRequest,
        beat: Beat,
        app: AppSide | None,
    ) -> None:
        self.sid = sid
        self.ids = ""
        self.extended = request.extended
        self.beat = beat
        self.takes_reconnect_in = request.options.reconnect_in
        self.state = SessionState.OPENING
        self.expires_at: float | None = None
        self.subscriptions: dict[str, Subscription] = {}
        limits = host.limits
        self.max_subscriptions = limits.tcp_max_subscriptions if request.tcp else limits.max_subscriptions
        self._command_rate = limits.tcp_command_rate if request.tcp else limits.command_rate
        self.members: dict[str, Member] | None = None
        self.app = app
        self.opening: asyncio.Task[None] | None = None
        self.returning: asyncio.Task[None] | None = None
        self.leaving: asyncio.Task[None] | None = None
        self.keeping = False
        self.row_budget = 0
        sending = self, connection, codec, host.rules, host.stats, limits.max_pending
        self.link = Link(*sending) if codec.meter is None else MeteredLink(*sending, codec.meter)
        self.link.names = (sid,)
        self._host = host
        self._connection = connection
        self.inbox: Inbox | None = None
        self._working = False
        self._handling = 0
        self._quiet: asyncio.Future[None] | None = None
        self._rate: CommandRate | None = None  # from the first command on
        self._expiry: asyncio.TimerHandle | None = None

    @property
    def tag(self) -> str:
        """Its short name in the log."""
        return trace.tag_of(self.sid)

    # --- the beginning ------------------------------------------------------------------------------------------------

    async def opened(self) -> bool:
        if self.opening is not None:
            await self.opening
        return self.state is SessionState.LIVE

    def accept(self, ids: str, expires_at: float | None) -> bool:
        """The client is known. False when it is gone meanwhile, or was ended by a remote disconnect while it was opening."""
        if (order := self._host.revocation(self, ids)) is not None:
            self.end(closings.by_order(order))
            return False
        following = advance(self.state, LifecycleEvent.ACCEPTED)
        if following is None:
            return False
        self.state = following
        self.ids = ids
        self.expires_at = expires_at
        self._host.accepted(self)
        self._watch_expiry()
        return True

    def begin(self) -> None:
        """After the welcome: handle what the client sent before it."""
        self.opening = None
        self._host.opened(self)
        self._fall_quiet()
        self._start_work()

    def _watch_expiry(self) -> None:
        if self.expires_at is None or self.state is not SessionState.LIVE:
            return
        left = self.expires_at - self._host.clock()
        if left <= 0:
            self.end(closings.TOKEN_EXPIRED)
        else:
            self._expiry = asyncio.get_running_loop().call_later(min(left, LONGEST_TIMER), self._watch_expiry)

    # --- commands -----------------------------------------------------------------------------------------------------

    def receive(self, frame: bytes) -> None:
        if self.state is SessionState.ENDED:
            return
        self._host.heard(self)
        if trace.tracing():
            trace.received(self.sid, frame)
        if self.inbox is None:
            self.inbox = Inbox(self._connection.hold_reading)
        self.inbox.put(frame)
        if self.state is SessionState.LIVE and not self._working:
            self._start_work()

    @property
    def unread(self) -> bool:
        """Its socket is not read for now, so that it may have answered without our knowing."""
        return self.inbox is not None and self.inbox.held

    @property
    def at_work(self) -> bool:
        """Not all of its commands that have come are handled."""
        return self._working

    def heard(self) -> None:
        self._host.heard(self)

    def malformed(self, reason: str, code: int, refusal: Refusal = Refusal.BAD_FRAME) -> None:
        if self._ended():
            return
        self._host.stats.refusals[refusal] += 1
        self._host.stats.commands_failed += 1
        logger.debug("malformed frame", extra={"session": self.tag, "reason": reason, "code": code})
        self.end(Closing("", False, code, reason[:100]))  # a client that comes back would send the same again

    def settled(self) -> Awaitable[None] | None:
        return None if self.inbox is None else self.inbox.settled()

    async def submit(self, command: Command) -> bool:
        if trace.tracing():
            trace.submitted(self.sid, command)
        return await self._guarded(command)

    def streams(self) -> dict[str, tuple[str, ...]]:
        return {identifier: subscription.granted.streams for identifier, subscription in self.subscriptions.items()}

    def _start_work(self) -> None:
        if self.inbox and not self._working and self.opening is None:
            self._working = True
            self._host.begin(self._work)  # when all that came with the first frame is in the inbox too

    async def _work(self) -> None:
        inbox, limits, now = self.inbox, self._host.limits, asyncio.get_running_loop().time
        if self._rate is None and self._command_rate > 0:
            self._rate = CommandRate(self._command_rate, limits.command_burst)
        waited = 0.0
        while inbox and self.state is SessionState.LIVE:
            if self._rate is not None and not self._rate.allow(now()):
                waited += await self._rate.wait()
            if self._ended():
                break
            if waited > limits.command_backlog:
                self._refuse_backlog()
                break
            try:
                command = self.link.codec.decode(inbox.take())
            except MalformedFrame as error:
                self.malformed(error.reason, error.code, error.refusal or Refusal.BAD_FRAME)
                break
            await self._guarded(command)
            inbox.finished()
            if inbox:
                await asyncio.sleep(0)  # so that a backend that never suspends does not starve other sessions
        self._working = False
        self.inbox = None  # an idle session keeps no queue
        if inbox is not None:
            inbox.end()

    def _ended(self) -> bool:
        return self.state is SessionState.ENDED

    async def _guarded(self, command: Command) -> bool:
        self._host.stats.commands += 1
        self._handling += 1
        try:
            granted = await self._host.handle(self, command)
        except Exception as error:
            if self._ended() and isinstance(error, Unavailable):  # it was asked for as long as the client was there
                logger.debug("command given up", extra={"session": self.tag, "reason": str(error)})
            elif self.link.hung_up and isinstance(error, Unavailable):
                logger.debug("command given up", extra={"session": self.tag, "reason": str(error)})
                self.end(closings.INTERNAL_ERROR)
            else:
                logger.exception("command failed", extra={"session": self.tag})
                self.end(closings.INTERNAL_ERROR)
            granted = False
        self._handling -= 1
        self._fall_quiet()
        if not granted:
            self._host.stats.commands_failed += 1
        return granted

    def _fall_quiet(self) -> None:
        if self._quiet is not None and not self._handling and not self._quiet.done():
            self._quiet.set_result(None)

    def _refuse_backlog(self) -> None:
        """Its socket is not read while it waits, so that nobody can tell whether it is still there."""
        self._host.stats.refusals[Refusal.BACKLOG] += 1
        logger.debug("too many commands", extra={"session": self.tag})
        self.end(closings.TOO_MANY_COMMANDS)

    def charge(self, answered: int) -> None:
        """A command was answered with so many bytes."""
        if self._rate is not None:
            self._rate.charge(answered)

    # --- the link's owner ---------------------------------------------------------------------------------------------

    def writing_paused(self) -> None:
        self.link.pause()
        self._host.paused(self)

    def writing_resumed(self) -> None:
        self.link.resume()

    def finish(self) -> Awaitable[None] | None:
        self.link.hang_up()
        return self._finish() if self.inbox is not None or self.link.slow else None

    async def _finish(self) -> None:
        if self.inbox is not None:
            await self.inbox.handled()
        await self.link.drained()

    def granted(self) -> None:
        if isinstance(self.link, MeteredLink):
            self.link.granted()

    def stalled(self) -> None:
        self._host.paused(self)

    def overflowed(self) -> None:
        self._host.stats.slow_disconnects += 1
        self._host.stats.refusals[Refusal.OUTBOX_FULL] += 1
        logger.debug("outbox full", extra={"session": self.tag, "pending": self.link.pending()})
        asyncio.get_running_loop().call_soon(self.end, closings.TOO_SLOW)

    def skipped(self, group: Group, after: Position, upto: Position) -> None:
        """What was dropped is no longer owed live, so that the client may ask for it as history."""
        subscription = self.subscriptions.get(group.identifier)
        # An epoch that has passed, or a stream that the subscription has left, cannot be asked for any more.
        if subscription is not None and upto.epoch == group.newest.epoch:
            subscription.skip(group.stream, after, upto)

    # --- the end ------------------------------------------------------------------------------------------------------

    def end(self, closing: Closing) -> None:
        """We close it. When its connection is gone already, it may still be kept from coming back."""
        known = self.state is SessionState.LIVE
        if (following := advance(self.state, LifecycleEvent.CLOSED)) is None:
            if closing not in RESUMABLE:
                self.revoke(closing.reason)
            return
        self.state = following
        self._drop_all()  # first, so that what was delivered in this tick goes before the goodbye
        self.link.close(closing)
        self._depart(known, msgspec.structs.replace(closing, reconnect_in=None) in RESUMABLE, closing.reason)

    def send_away(self, reconnect_in: int) -> None:
        """The server ends. A client that asked for it is told in how many milliseconds to come back."""
        told = reconnect_in if self.takes_reconnect_in else None
        self.end(msgspec.structs.replace(closings.SERVER_RESTART, reconnect_in=told))

    def lost(self, going_away: bool = False) -> None:
        known = self.state is SessionState.LIVE
        if (following := advance(self.state, LifecycleEvent.LOST)) is None:
            return
        self.state = following
        logger.debug("connection lost", extra={"session": self.tag})
        self.link.lose()
        self._drop_all()
        # A page that was closed does not come back, and an application that waits to hear of it should not wait in vain.
        self._depart(known, not (going_away and self.app is not None and self.app.known), "")

    def revoke(self, reason: str) -> bool:
        """Do not keep it for a resume. False if it would not have been kept."""
        revoked, self.keeping = self.keeping, False
        if revoked:
            self._host.revoked(self, reason)
        return revoked

    def snapshot(self) -> SessionSnapshot:
        granted = {identifier: subscription.granted for identifier, subscription in self.subscriptions.items()}
        return SessionSnapshot(self.ids, granted, self.expires_at, self.members or {}, self.link.names, self.app)

    def drop(self, subscription: Subscription) -> None:
        self._host.dropped(self, subscription)

    def _drop_all(self) -> None:
        for subscription in self.subscriptions.values():
            self.drop(subscription)

    def _depart(self, known: bool, resumable: bool, reason: str) -> None:
        self._host.stats.connections_closed += 1
        if self._expiry is not None:
            self._expiry.cancel()
        self._host.disconnected(self)
        if not known:
            return
        self.keeping = resumable and self.extended and self._host.limits.sessions_ttl > 0
        if not self._host.departing(self, reason):
            return
        if self._handling or self.opening is not None:
            # What the application is just granting belongs to what it is told of, or what is kept.
            self._quiet = asyncio.get_running_loop().create_future()
        self.leaving = self._host.spawn(self._depart_for_good())

    async def _depart_for_good(self) -> None:
        try:
            if self._quiet is not None:
                await self._quiet
            if self.returning is not None:
                await asyncio.wait([self.returning])
            await self._host.depart(self)
        finally:
            self.keeping = False
            self._host.departed(self)
