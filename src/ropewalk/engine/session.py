"""A session: one client over one connection. Commands are handled strictly one after another; the end happens once.

What a session may do is decided in `session_opening`, `commands` and `joins`. The session keeps the order and the bounds.
"""

import asyncio
import logging
from collections.abc import Awaitable

import msgspec

from ropewalk.core.lifecycle import LifecycleEvent, SessionState, advance
from ropewalk.core.quotas import TokenBucket
from ropewalk.engine import trace
from ropewalk.engine.audience import Group
from ropewalk.engine.inbox import CommandRate, Inbox
from ropewalk.engine.link import Link
from ropewalk.engine.metered_link import MeteredLink
from ropewalk.engine.session_node import Beat, SessionNode
from ropewalk.engine.subscription import Subscription
from ropewalk.model import closing as closings
from ropewalk.model.closing import Closing
from ropewalk.model.commands import Command
from ropewalk.model.errors import MalformedFrame, Unavailable
from ropewalk.model.messages import Position
from ropewalk.model.presence import Member
from ropewalk.model.refusals import Refusal
from ropewalk.model.sessions import AppSide, ConnectRequest, SessionSnapshot
from ropewalk.ports import Connection
from ropewalk.protocol.codec import SessionCodec

logger = logging.getLogger("ropewalk.session")

MAX_TIMER_SECONDS = 86400.0  # a later expiry is checked again then, because timers of years overflow

# After these the client may resume with its sid. The others are final: decided by the application or the token.
RESUMABLE = (closings.TOO_SLOW, closings.NO_PONG, closings.SERVER_RESTART, closings.INTERNAL_ERROR, closings.TAKEN_OVER)


class Session:
    """The `SessionHandle` of its transport. `members`: its presence memberships, None for the many without any.

    `keeping`: the connection is lost, and the session will be kept for a resume unless it is revoked. `leaving` is the task of
    its departure. `row_budget`: bytes of changes written to the journal before the whole session is written again.
    """

    __slots__ = (
        "_command_rate",
        "_connection",
        "_expiry",
        "_handling",
        "_idle",
        "_node",
        "_rate",
        "_whispers",
        "_working",
        "address",
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
        "user",
    )

    def __init__(
        self,
        node: SessionNode["Session"],
        sid: str,
        connection: Connection,
        codec: SessionCodec,
        request: ConnectRequest,
        beat: Beat,
        app: AppSide | None,
    ) -> None:
        self.sid = sid
        self.ids = ""
        self.address = self.user = ""  # the quota keys it counts against, "" for none
        self.extended = request.extended
        self.beat = beat
        self.takes_reconnect_in = request.options.reconnect_in
        self.state = SessionState.OPENING
        self.expires_at: float | None = None
        self.subscriptions: dict[str, Subscription] = {}
        limits = node.limits
        self.max_subscriptions = limits.tcp_max_subscriptions if request.tcp else limits.max_subscriptions
        self._command_rate = limits.tcp_command_rate if request.tcp else limits.command_rate
        self.members: dict[str, Member] | None = None
        self.app = app
        self.opening: asyncio.Task[None] | None = None
        self.returning: asyncio.Task[None] | None = None
        self.leaving: asyncio.Task[None] | None = None
        self.keeping = False
        self.row_budget = 0
        sending = self, connection, codec, node.rules, node.stats, limits.max_pending
        self.link = Link(*sending) if codec.meter is None else MeteredLink(*sending, codec.meter)
        self.link.names = (sid,)
        self._node = node
        self._connection = connection
        self.inbox: Inbox | None = None
        self._working = False
        self._handling = 0
        self._idle: asyncio.Future[None] | None = None
        self._rate: CommandRate | None = None  # from the first command on
        self._whispers: TokenBucket | None = None  # from the first whisper on
        self._expiry: asyncio.TimerHandle | None = None

    @property
    def tag(self) -> str:
        """Its short name in the log."""
        return trace.short_sid(self.sid)

    # --- the beginning ------------------------------------------------------------------------------------------------

    async def wait_opened(self) -> bool:
        if self.opening is not None:
            await self.opening
        return self.state is SessionState.LIVE

    def enter(self, remote: str) -> bool:
        """Take a place in the quota of this address. If there is none, end the session and return False."""
        place = self._node.quotas.enter(remote, self._node.clock())
        if isinstance(place, Refusal):
            self._refuse_connection(place)
            return False
        self.address = place
        return True

    def _refuse_connection(self, why: Refusal) -> None:
        self._node.stats.refusals[why] += 1
        logger.debug("connection refused", extra={"session": self.tag, "reason": why.value})
        self.end(closings.TOO_MANY_CONNECTIONS)

    def accept(self, ids: str, expires_at: float | None) -> bool:
        """The client is authenticated. Returns False if it is gone, was disconnected remotely while it was opening, or has too
        many connections."""
        if (request := self._node.revocation(self, ids)) is not None:
            self.end(closings.remote_closing(request))
            return False
        following = advance(self.state, LifecycleEvent.ACCEPTED)
        if following is None:
            return False
        user = self._node.quotas.identify(ids)
        if isinstance(user, Refusal):
            self._refuse_connection(user)
            return False
        self.state = following
        self.ids = ids
        self.user = user
        self.expires_at = expires_at
        self._node.accepted(self)
        self._watch_expiry()
        return True

    def begin(self) -> None:
        """After the welcome: handle what the client sent before it."""
        self.opening = None
        self._node.opened(self)
        self._notify_idle()
        self._start_work()

    def _watch_expiry(self) -> None:
        if self.expires_at is None or self.state is not SessionState.LIVE:
            return
        left = self.expires_at - self._node.clock()
        if left <= 0:
            self.end(closings.TOKEN_EXPIRED)
        else:
            self._expiry = asyncio.get_running_loop().call_later(min(left, MAX_TIMER_SECONDS), self._watch_expiry)

    # --- commands -----------------------------------------------------------------------------------------------------

    def receive(self, frame: bytes) -> None:
        if self.state is SessionState.ENDED:
            return
        self._node.note_activity(self)
        if trace.tracing():
            trace.received(self.sid, frame)
        if self.inbox is None:
            self.inbox = Inbox(self._connection.hold_reading)
        self.inbox.put(frame)
        if self.state is SessionState.LIVE and not self._working:
            self._start_work()

    @property
    def unread(self) -> bool:
        """Whether reading of its socket is paused, so that a pong may be unread."""
        return self.inbox is not None and self.inbox.held

    @property
    def at_work(self) -> bool:
        """Whether received commands are still to be handled."""
        return self._working

    def note_activity(self) -> None:
        self._node.note_activity(self)

    def reject_frame(self, reason: str, code: int, refusal: Refusal = Refusal.BAD_FRAME) -> None:
        if self._ended():
            return
        self._node.stats.refusals[refusal] += 1
        self._node.stats.commands_failed += 1
        logger.debug("malformed frame", extra={"session": self.tag, "reason": reason, "code": code})
        self.end(Closing("", False, code, reason[:100]))  # no reconnect: the client would send the same frame again

    def wait_idle(self) -> Awaitable[None] | None:
        return None if self.inbox is None else self.inbox.wait_idle()

    def message_overdue(self) -> None:
        if not self._ended():
            self._node.stats.refusals[Refusal.MESSAGE_TIMEOUT] += 1
            logger.debug("message not finished in time", extra={"session": self.tag})
            self.end(closings.UNFINISHED_MESSAGE)

    async def submit(self, command: Command) -> bool:
        if trace.tracing():
            trace.submitted(self.sid, command)
        return await self._guarded(command)

    def streams(self) -> dict[str, tuple[str, ...]]:
        return {identifier: subscription.granted.streams for identifier, subscription in self.subscriptions.items()}

    def _start_work(self) -> None:
        if self.inbox and not self._working and self.opening is None:
            self._working = True
            self._node.begin(self._work)  # after all frames of the same read are in the inbox

    async def _work(self) -> None:
        inbox, limits, now = self.inbox, self._node.limits, asyncio.get_running_loop().time
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
                self.reject_frame(error.reason, error.code, error.refusal or Refusal.BAD_FRAME)
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
        self._node.stats.commands += 1
        self._handling += 1
        try:
            granted = await self._node.handle(self, command)
        except Exception as error:
            if self._ended() and isinstance(error, Unavailable):  # retried until the client was gone
                logger.debug("command given up", extra={"session": self.tag, "reason": str(error)})
            elif self.link.hung_up and isinstance(error, Unavailable):
                logger.debug("command given up", extra={"session": self.tag, "reason": str(error)})
                self.end(closings.INTERNAL_ERROR)
            else:
                logger.exception("command failed", extra={"session": self.tag})
                self.end(closings.INTERNAL_ERROR)
            granted = False
        self._handling -= 1
        self._notify_idle()
        if not granted:
            self._node.stats.commands_failed += 1
        return granted

    def _notify_idle(self) -> None:
        if self._idle is not None and not self._handling and not self._idle.done():
            self._idle.set_result(None)

    def _refuse_backlog(self) -> None:
        """End a session whose commands wait too long: its socket is not read meanwhile, so a lost client is not noticed."""
        self._node.stats.refusals[Refusal.BACKLOG] += 1
        logger.debug("too many commands", extra={"session": self.tag})
        self.end(closings.TOO_MANY_COMMANDS)

    def charge(self, answered: int) -> None:
        """Count an answer of so many bytes against the command rate."""
        if self._rate is not None:
            self._rate.charge(answered)

    def may_whisper(self, size: int) -> bool:
        """Whether a whisper of this size is within the rate. If so, it is counted."""
        limits = self._node.limits
        if limits.whisper_rate <= 0:
            return True
        if self._whispers is None:
            self._whispers = TokenBucket(limits.whisper_rate, max(limits.whisper_rate, limits.max_whisper))
        return self._whispers.allow(asyncio.get_running_loop().time(), size)

    # --- the link's owner ---------------------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        self.link.pause()
        self._node.paused(self)

    def resume_writing(self) -> None:
        self.link.resume()

    def finish(self) -> Awaitable[None] | None:
        self.link.hang_up()
        return self._finish() if self.inbox is not None or self.link.slow else None

    async def _finish(self) -> None:
        if self.inbox is not None:
            await self.inbox.handled()
        await self.link.drained()

    def credit_granted(self) -> None:
        if isinstance(self.link, MeteredLink):
            self.link.granted()

    def stalled(self) -> None:
        self._node.paused(self)

    def overflowed(self) -> None:
        self._node.stats.slow_disconnects += 1
        self._node.stats.refusals[Refusal.OUTBOX_FULL] += 1
        logger.debug("outbox full", extra={"session": self.tag, "pending": self.link.pending()})
        asyncio.get_running_loop().call_soon(self.end, closings.TOO_SLOW)

    def skipped(self, group: Group, after: Position, upto: Position) -> None:
        """Record dropped messages as not sent, so that the client can request them as history."""
        subscription = self.subscriptions.get(group.identifier)
        # Messages of a former epoch, or of a stream that the subscription has left, cannot be requested.
        if subscription is not None and upto.epoch == group.newest.epoch:
            subscription.skip(group.stream, after, upto)

    # --- the end ------------------------------------------------------------------------------------------------------

    def end(self, closing: Closing) -> None:
        """Close the connection. If it is closed already, a final `closing` still prevents a resume."""
        known = self.state is SessionState.LIVE
        if (following := advance(self.state, LifecycleEvent.CLOSED)) is None:
            if closing not in RESUMABLE:
                self.revoke(closing.reason)
            return
        self.state = following
        self._drop_all()  # first, so that the messages of this tick are sent before the disconnect frame
        self.link.close(closing)
        self._depart(known, msgspec.structs.replace(closing, reconnect_in=None) in RESUMABLE, closing.reason)

    def send_away(self, reconnect_in: int) -> None:
        """End the session at a server shutdown. `reconnect_in`: milliseconds, sent to clients that asked for it."""
        delay = reconnect_in if self.takes_reconnect_in else None
        self.end(msgspec.structs.replace(closings.SERVER_RESTART, reconnect_in=delay))

    def connection_lost(self, going_away: bool = False) -> None:
        known = self.state is SessionState.LIVE
        if (following := advance(self.state, LifecycleEvent.LOST)) is None:
            return
        self.state = following
        logger.debug("connection lost", extra={"session": self.tag})
        self.link.lose()
        self._drop_all()
        # A closed page does not come back, so its end is reported to the application at once.
        self._depart(known, not (going_away and self.app is not None and self.app.known), "")

    def revoke(self, reason: str) -> bool:
        """Do not keep the session for a resume. Returns False if it would not have been kept."""
        revoked, self.keeping = self.keeping, False
        if revoked:
            self._node.revoked(self, reason)
        return revoked

    def snapshot(self) -> SessionSnapshot:
        granted = {identifier: subscription.granted for identifier, subscription in self.subscriptions.items()}
        return SessionSnapshot(self.ids, granted, self.expires_at, self.members or {}, self.link.names, self.app)

    def drop(self, subscription: Subscription) -> None:
        self._node.dropped(self, subscription)

    def _drop_all(self) -> None:
        self._node.dropped_all(self)

    def _depart(self, known: bool, resumable: bool, reason: str) -> None:
        self._node.stats.connections_closed += 1
        if self._expiry is not None:
            self._expiry.cancel()
        self._node.disconnected(self)
        if not known:
            return
        self.keeping = resumable and self.extended and self._node.limits.sessions_ttl > 0
        if not self._node.departing(self, reason):
            return
        if self._handling or self.opening is not None:
            # Wait for pending grants of the application: the Disconnect call and the kept session include them.
            self._idle = asyncio.get_running_loop().create_future()
        self.leaving = self._node.spawn(self._finish_departure())

    async def _finish_departure(self) -> None:
        try:
            if self._idle is not None:
                await self._idle
            if self.returning is not None:
                await asyncio.wait([self.returning])
            await self._node.depart(self)
        finally:
            self.keeping = False
            self._node.departed(self)
