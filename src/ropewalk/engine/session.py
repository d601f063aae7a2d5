"""A session: one client over one connection. Its commands are handled strictly one after another; its end happens once.

What it may do is decided elsewhere (opening, commands, joining); the session keeps the order and the bounds.
"""

import asyncio
import logging

from ropewalk.core.lifecycle import Event, State, advance
from ropewalk.core.rate import TokenBucket
from ropewalk.engine.commands import handle
from ropewalk.engine.conversation import side_of
from ropewalk.engine.hub import Group
from ropewalk.engine.inbox import Inbox
from ropewalk.engine.link import Link
from ropewalk.engine.services import Services
from ropewalk.engine.subscription import Subscription
from ropewalk.model import closing as closings
from ropewalk.model.closing import Closing
from ropewalk.model.commands import Command
from ropewalk.model.errors import MalformedFrame, Unavailable
from ropewalk.model.messages import Position
from ropewalk.model.presence import Member
from ropewalk.model.sessions import ConnectRequest, SessionSnapshot
from ropewalk.ports import Connection
from ropewalk.protocol.codec import Codec

logger = logging.getLogger("ropewalk.session")

INBOX_HIGH = 64  # commands that may wait before the client's socket is no longer read
INBOX_LOW = 16
LONGEST_TIMER = 86400.0  # an expiry further away is looked at again then; timers of years overflow

# After these the client may come back with its sid; after the others the application or the token has spoken.
RESUMABLE = (closings.TOO_SLOW, closings.NO_PONG, closings.SERVER_RESTART, closings.INTERNAL_ERROR, closings.TAKEN_OVER)


class Session:
    """The `Visitor` of its transport. `members` is what it holds in presence sets, None for the many that never join one."""

    __slots__ = (
        "_bucket",
        "_connection",
        "_expiry",
        "_handling",
        "_quiet",
        "_services",
        "_working",
        "app",
        "beat",
        "expires_at",
        "extended",
        "ids",
        "inbox",
        "last_heard",
        "link",
        "members",
        "opening",
        "returning",
        "sid",
        "state",
        "subscriptions",
    )

    def __init__(self, services: Services, sid: str, connection: Connection, codec: Codec, request: ConnectRequest) -> None:
        self.sid = sid
        self.ids = ""
        self.extended = request.extended
        self.beat = services.heartbeat.beat(request.params.get("pi", ""), request.params.get("ptp", ""))
        self.state = State.OPENING
        self.expires_at: float | None = None
        self.subscriptions: dict[str, Subscription] = {}
        self.members: dict[str, Member] | None = None
        self.app = side_of(request, services)
        self.last_heard = services.clock()
        self.opening: asyncio.Task[None] | None = None
        self.returning: asyncio.Task[None] | None = None
        self.link = Link(self, connection, codec, services.rules, services.stats, services.limits.max_pending)
        self.link.names = (sid,)
        self._services = services
        self._connection = connection
        self.inbox: Inbox | None = None
        self._working = False
        self._handling = 0
        self._quiet: asyncio.Future[None] | None = None
        self._bucket: TokenBucket | None = None
        self._expiry: asyncio.TimerHandle | None = None

    @property
    def tag(self) -> str:
        """What the log calls it: the whole sid would let a reader of the log resume the session."""
        return self.sid[:6]

    # --- the beginning ------------------------------------------------------------------------------------------------

    async def opened(self) -> bool:
        if self.opening is not None:
            await self.opening
        return self.state is State.LIVE

    def accept(self, ids: str, expires_at: float | None) -> bool:
        """The client is known. False when it is gone meanwhile."""
        following = advance(self.state, Event.ACCEPTED)
        if following is None:
            return False
        self.state = following
        self.ids = ids
        self.expires_at = expires_at
        self._services.sessions[self.sid] = self
        self._services.heartbeat.add(self)
        self._watch_expiry()
        return True

    def begin(self) -> None:
        """Welcomed: handle what the client sent ahead."""
        self.opening = None
        self._fall_quiet()
        self._start_work()

    def _watch_expiry(self) -> None:
        if self.expires_at is None or self.state is not State.LIVE:
            return
        left = self.expires_at - self._services.clock()
        if left <= 0:
            self.end(closings.TOKEN_EXPIRED)
        else:
            self._expiry = asyncio.get_running_loop().call_later(min(left, LONGEST_TIMER), self._watch_expiry)

    # --- commands -----------------------------------------------------------------------------------------------------

    def receive(self, frame: bytes) -> None:
        if self.state is State.ENDED:
            return
        self.heard()
        if self.inbox is None:
            self.inbox = Inbox()
        self.inbox.put(frame)
        if len(self.inbox) == INBOX_HIGH:
            self._connection.hold_reading(True)
        if self.state is State.LIVE:
            self._start_work()

    def heard(self) -> None:
        self.last_heard = self._services.clock()

    def malformed(self, reason: str, code: int) -> None:
        if self.state is State.ENDED:
            return
        self._services.stats.commands_failed += 1
        logger.info("malformed frame", extra={"session": self.tag, "reason": reason, "code": code})
        self.end(Closing("", True, code, reason[:100]))

    async def submit(self, command: Command) -> bool:
        return await self._guarded(command)

    def _start_work(self) -> None:
        if self.inbox and not self._working and self.opening is None:
            self._working = True
            self._services.tasks.spawn(self._work())

    async def _work(self) -> None:
        inbox = self.inbox
        while inbox and self.state is State.LIVE:
            frame = inbox.take()
            if len(inbox) == INBOX_LOW:
                self._connection.hold_reading(False)
            await self._pace()
            try:
                command = self.link.codec.decode(frame)
            except MalformedFrame as error:
                self.malformed(error.reason, error.code)
                break
            await self._guarded(command)
        self._working = False
        self.inbox = None  # an idle session keeps no queue

    async def _guarded(self, command: Command) -> bool:
        self._services.stats.commands += 1
        self._handling += 1
        try:
            granted = await handle(self, self._services, command)
        except Exception:
            logger.exception("command failed", extra={"session": self.tag})
            self.end(closings.INTERNAL_ERROR)
            granted = False
        self._handling -= 1
        self._fall_quiet()
        if not granted:
            self._services.stats.commands_failed += 1
        return granted

    def _fall_quiet(self) -> None:
        if self._quiet is not None and not self._handling and not self._quiet.done():
            self._quiet.set_result(None)

    async def _pace(self) -> None:
        """A client that sends faster than its rate waits; it loses nothing and nobody waits with it."""
        limits = self._services.limits
        if limits.command_rate <= 0:
            return
        if self._bucket is None:
            self._bucket = TokenBucket(limits.command_rate, limits.command_burst)
        loop = asyncio.get_running_loop()
        while not self._bucket.allow(loop.time()):  # noqa: ASYNC110 - waits for time, not for an event
            await asyncio.sleep(1 / limits.command_rate)

    # --- the link's owner ---------------------------------------------------------------------------------------------

    def writing_paused(self) -> None:
        self.link.pause(self._services.clock())

    def writing_resumed(self) -> None:
        self.link.resume()

    def overflowed(self) -> None:
        self._services.stats.slow_disconnects += 1
        asyncio.get_running_loop().call_soon(self.end, closings.TOO_SLOW)

    def skipped(self, group: Group, after: Position, upto: Position) -> None:
        """What was dropped is no longer owed live, so that the client may ask for it as history."""
        subscription = self.subscriptions.get(group.identifier)
        # An epoch that has passed, or a stream that the subscription has left, cannot be asked for any more.
        if subscription is not None and upto.epoch == group.newest.epoch:
            subscription.skip(group.stream, after, upto)

    # --- the end ------------------------------------------------------------------------------------------------------

    def end(self, closing: Closing) -> None:
        """We close it. Comes too late without harm."""
        known = self.state is State.LIVE
        if (following := advance(self.state, Event.CLOSED)) is None:
            return
        self.state = following
        self.link.close(closing)
        self._depart(known, closing in RESUMABLE, closing.reason)

    def lost(self, going_away: bool = False) -> None:
        known = self.state is State.LIVE
        if (following := advance(self.state, Event.LOST)) is None:
            return
        self.state = following
        self.link.lose()
        # A page that was closed does not come back, and an application that waits to hear of it should not wait in vain.
        self._depart(known, not (going_away and self.app is not None and self.app.known), "")

    def snapshot(self) -> SessionSnapshot:
        granted = {identifier: subscription.granted for identifier, subscription in self.subscriptions.items()}
        return SessionSnapshot(self.ids, granted, self.expires_at, self.members or {}, self.link.names, self.app)

    def drop(self, subscription: Subscription) -> None:
        for group in subscription.groups:
            self._services.hub.leave(group, self.link)
        subscription.groups = ()
        self._services.joiner.release(subscription)

    def _depart(self, known: bool, resumable: bool, reason: str) -> None:
        self._services.stats.connections_closed += 1
        if self._expiry is not None:
            self._expiry.cancel()
        for subscription in self.subscriptions.values():
            self.drop(subscription)
        self._services.heartbeat.remove(self)
        if not known:
            return
        self._services.sessions.pop(self.sid, None)
        keep = resumable and self.extended and self._services.limits.sessions_ttl > 0
        self._services.annals.disconnected(self, keep, reason)
        if keep or self.members or self.app is not None:
            if (
                self._handling or self.opening is not None
            ):  # what the application is just granting belongs to what it is told of, or what is kept
                self._quiet = asyncio.get_running_loop().create_future()
            task = self._services.tasks.spawn(self._farewell(keep))
            self._services.departing[self.sid] = task

    async def _farewell(self, keep: bool) -> None:
        services = self._services
        try:
            if self._quiet is not None:
                await self._quiet
            if self.returning is not None:
                await asyncio.wait([self.returning])
            if not (keep and await self._save()):
                services.farewells.say(self.sid, self.snapshot())
            if self.members:
                await services.backend.presence.detach(self.sid, services.limits.presence_ttl)
        finally:
            services.departing.pop(self.sid, None)

    async def _save(self) -> bool:
        try:
            await self._services.backend.sessions.save(self.sid, self.snapshot(), self._services.limits.sessions_ttl)
        except Unavailable as error:
            logger.warning("a session cannot be kept", extra={"session": self.tag, "reason": str(error)})
            return False
        return True
