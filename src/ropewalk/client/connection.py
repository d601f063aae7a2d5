"""Keeps a session connected: dials, watches the connection, and reconnects after growing pauses.

Reading pauses while an inbox is full, so that a slow program slows the server down and nothing is dropped. It continues while a
caller waits for an answer, which may be behind the data for a full inbox.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol

from msgspec import Struct

from ropewalk.client.codec import Codec
from ropewalk.client.effects import End, Redial
from ropewalk.client.errors import CertificateUntrusted, PublishUnavailable, TlsFailed, TokenExpired, Unreachable
from ropewalk.client.link import ClientLink, Dialer, Keepalive
from ropewalk.client.publish_request import ATTEMPTS
from ropewalk.core.backoff import Backoff, Chance
from ropewalk.model.closing import TOKEN_EXPIRED
from ropewalk.protocol.broky import frames

logger = logging.getLogger("ropewalk.client")

MAX_LOGGED_REASONS = 16

Refresh = Callable[[], Awaitable[str]]


class SessionOptions(Struct, frozen=True):
    """Options of a session.

    Args:
        clock: UNIX time that never jumps.
        backoff: The pauses between connection attempts.
        chance: Spreads these pauses.
        inbox_size: Events that wait for a slow reader before the socket is no longer read.
        connect_timeout: Seconds for a connection, and for the server's welcome.
        answer_timeout: Seconds; None: a wait ends only with the connection.
        ping_interval: Seconds between two pings; None: the server decides, or there are none.
        attempts: How often a push is tried.
        on_demand: Connect only while something is to be pushed.
    """

    clock: Callable[[], float]
    backoff: Backoff = Backoff()
    chance: Chance = random.random
    inbox_size: int = 256
    connect_timeout: float = 10.0
    answer_timeout: float | None = 10.0
    ping_interval: float | None = None
    attempts: int = ATTEMPTS
    on_demand: bool = False


class Owner(Protocol):
    """The session that uses the connection. `sid`: the session to restore; `publishing`: a push waits for the connection."""

    @property
    def sid(self) -> str: ...
    @property
    def publishing(self) -> bool: ...

    def receive(self, data: bytes) -> None: ...
    def next_ref(self) -> int: ...

    def disconnected(self) -> None:
        """The connection is lost."""

    def attempt_failed(self, error: Exception, max_attempts: int, last: bool) -> None:
        """The server was not reached. `last`: this was the last one of `max_attempts`."""

    def ended(self, error: Exception) -> None:
        """There are no more attempts."""


class Connection:
    """Begin with `open` or `start`, end with `close`. `link` is None while there is none; `verdict`: why it ends."""

    def __init__(
        self, dialer: Dialer, codec: Codec, options: SessionOptions, owner: Owner, token: str, refresh: Refresh | None
    ) -> None:
        self.url = dialer.url
        self.link: ClientLink | None = None
        self.verdict: Redial | End | Unreachable | None = None
        self._dialer = dialer
        self._codec = codec
        self._options = options
        self._owner = owner
        self._token = token
        self._refresh = refresh
        self._opening: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._keepalive: Keepalive | None = None
        self._welcome_timer: asyncio.TimerHandle | None = None
        self._full: set[str] = set()
        self._waiting = 0
        self._attempt = 0
        self._logged: set[str] = set()

    async def open(self) -> None:
        """Returns when the server has accepted the session. Raises Unreachable or Disconnected."""
        self._opening = asyncio.get_running_loop().create_future()
        self.start()
        await self._opening

    def start(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def cut(self) -> None:
        """Abort the connection, like a network failure."""
        if self.link is not None:
            self.link.cut()

    def write(self, data: bytes) -> None:
        """Dropped while there is no connection: the state repeats commands that are still needed."""
        if self.link is not None and data:
            self.link.write(data)

    def accepted(self) -> None:
        """The server has accepted the session."""
        self._attempt = 0
        self._logged.clear()
        if self._welcome_timer is not None:
            self._welcome_timer.cancel()
        if self._keepalive is not None:
            self._keepalive.start()
        if self._opening is not None and not self._opening.done():
            self._opening.set_result(None)

    def pinged(self, timestamp: float) -> None:
        if self._keepalive is not None:
            self._keepalive.pinged(timestamp)

    def leave(self, verdict: Redial | End | Unreachable) -> None:
        """End this connection, for this reason."""
        self.verdict = verdict
        if self.link is not None:
            self.link.leave()

    # --- backpressure ---

    def waits(self, callers: int) -> None:
        """So many more callers wait for an answer, or fewer."""
        self._waiting += callers
        self.pace()

    def full(self, identifier: str) -> None:
        """The inbox of this stream is full. Takes effect with the next `pace`."""
        self._full.add(identifier)

    def relieved(self, identifier: str) -> None:
        self._full.discard(identifier)
        self.pace()

    def pace(self) -> None:
        if self.link is not None:
            self.link.read(not self._full or self._waiting > 0)

    # --- the task ---

    async def _run(self) -> None:
        opening = self._opening
        try:
            while True:
                pause = self.verdict = None
                try:
                    pause = await self._connect()
                except Unreachable as error:
                    if opening is not None and not opening.done():
                        raise
                    needs_person = isinstance(error, CertificateUntrusted | TlsFailed)
                    self._log(str(error), warn=needs_person and not self._options.on_demand)
                    self._attempt_failed(error)
                if self._options.on_demand and not self._owner.publishing:
                    return
                await asyncio.sleep(self._next_pause() if pause is None else pause)
        except Exception as error:  # callers that wait must get every error
            self._owner.ended(error)
            if opening is not None and not opening.done():
                opening.set_exception(error)

    def _next_pause(self) -> float:
        self._attempt += 1
        return self._options.backoff.delay(self._attempt - 1, self._options.chance)

    def _attempt_failed(self, error: Exception) -> None:
        max_attempts = 1 if isinstance(error, CertificateUntrusted | TlsFailed) else self._options.attempts
        self._owner.attempt_failed(error, max_attempts, self._attempt + 1 >= max_attempts)

    async def _connect(self) -> float | None:
        """One connection, from the first byte to the last. Returns the server's reconnect delay if it gave one."""
        link = self.link = await self._dialer.dial(self._owner.receive, self._owner.sid, self._token)
        ping = partial(self._ping, link) if self._codec.client_pings else None
        self._keepalive = keepalive = Keepalive(link, self._options.ping_interval, ping, self.leave)
        seconds = self._options.connect_timeout
        self._welcome_timer = timer = asyncio.get_running_loop().call_later(seconds, self._welcome_timed_out)
        try:
            self.write(self._codec.open(self._token))
            await link.run()
        except Unreachable as error:
            self.verdict = self.verdict or (error if timer.cancelled() else Unreachable(f"{error}; {self._dialer.hint}"))
        finally:
            welcomed = timer.cancelled()
            timer.cancel()
            keepalive.stop()
            self.link = None
            self._owner.disconnected()
            await link.close()
        return await self._reconnect_delay(welcomed)

    async def _reconnect_delay(self, welcomed: bool) -> float | None:
        """Raises why the connection ended, unless the server wants a reconnect."""
        match self.verdict:
            case Redial(new_token=True):
                if self._refresh is None:
                    raise TokenExpired(TOKEN_EXPIRED.reason)
                self._token = await self._refresh()
                return None
            case Redial(after=after, reason=reason):
                if reason and not welcomed:
                    self._log(reason, warn=not self._options.on_demand)
                self._attempt_failed(PublishUnavailable(reason))
                return after
            case End(error) | (Unreachable() as error):
                raise error
            case None:
                return None

    def _welcome_timed_out(self) -> None:
        self.leave(Unreachable(f"{self.url} did not answer within {self._options.connect_timeout:g} seconds"))
        self.cut()

    def _ping(self, link: ClientLink) -> None:
        link.write(self._codec.encode(frames.Ping(self._owner.next_ref()), 0))

    def _log(self, reason: str, warn: bool) -> None:
        """Once per reason and outage. Errors that need a person are warnings with the reason in the text, which Python prints
        without logging configured, unless the caller of a push gets them."""
        if reason in self._logged:
            return
        if len(self._logged) == MAX_LOGGED_REASONS:
            self._logged.clear()
        self._logged.add(reason)
        if warn:
            logger.warning("not connected, retrying: %s", reason)
        else:
            logger.info("connection lost", extra={"reason": reason})
