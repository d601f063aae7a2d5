"""The subscriptions of this node to the channels of one shard, over a separate connection that reconnects automatically.

Redis sends every message in order to a subscriber, or closes its connection. So messages are lost only between connections, and
`reconnected` is called after each new connection.
"""

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Awaitable, Callable

from redis import exceptions
from redis.asyncio.connection import AbstractConnection

from ropewalk.adapters.backends.redis.links import LOST, Connect
from ropewalk.core.backoff import Backoff
from ropewalk.model.errors import Unavailable

logger = logging.getLogger("ropewalk.redis")

BETWEEN_CONNECTIONS = Backoff(0.05, 2.0)

QUIET_SECONDS = 2.0
"""A connection without messages for this long is pinged, and closed if the answer takes as long again."""

LISTEN_SECONDS = 2.0

CHANNELS_AT_ONCE = 500

CANCEL_SECONDS = 0.05
"""The client can lose a cancellation that arrives together with a result. Then the task is cancelled again."""

Receive = Callable[[bytes, bytes], None]
"""Receives a channel and a message."""


class ShardSubscriber:
    """`always`: channels subscribed from the start. `sharded`: use SSUBSCRIBE. `reconnected` is called once a new connection
    has subscribed to all wanted channels."""

    def __init__(
        self,
        connect: Connect,
        sharded: bool,
        always: list[bytes],
        receive: Receive,
        reconnected: Callable[[], Awaitable[None]],
    ) -> None:
        self._connect = connect
        self._prefix = "S" if sharded else ""
        self._receive = receive
        self._reconnected = reconnected
        self._wanted: dict[bytes, None] = dict.fromkeys(always)
        self._unconfirmed: Counter[bytes] = Counter()
        self._confirmed: set[bytes] = set()
        self._catching_up: set[bytes] = set()  # channels that a new connection has not confirmed yet
        self._waiting: dict[bytes, asyncio.Future[None]] = {}
        self._changes: dict[bytes, bool] = {}
        self._connection: AbstractConnection | None = None
        self._flushing: asyncio.Task[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self.trouble = ""

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._keep_connected())

    async def stop(self) -> None:
        for task in (self._task, self._flushing):
            while task is not None and not task.done():
                task.cancel()
                await asyncio.wait([task], timeout=CANCEL_SECONDS)

    async def listen(self, channel: bytes) -> None:
        """Returns once the server has confirmed it. Raises `Unavailable`."""
        if channel in self._confirmed:
            return
        if channel not in self._wanted:
            self._wanted[channel] = None
            self._change(channel, True)
        waiting = self._waiting.get(channel)
        if waiting is None:
            waiting = self._waiting[channel] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(LISTEN_SECONDS):
                await asyncio.shield(waiting)
        except TimeoutError:
            raise Unavailable("Redis cannot be listened to") from None

    def unlisten(self, channel: bytes) -> None:
        if channel in self._wanted:
            del self._wanted[channel]
            self._confirmed.discard(channel)
            self._waiting.pop(channel, None)
            self._change(channel, False)

    # --- batched changes ----------------------------------------------------------------------------------------------

    def _change(self, channel: bytes, wanted: bool) -> None:
        self._changes[channel] = wanted
        if self._flushing is None and self._connection is not None:
            self._flushing = asyncio.get_running_loop().create_task(self._flush())

    async def _flush(self) -> None:
        await asyncio.sleep(0)
        try:
            while self._changes and self._connection is not None:
                changes, self._changes = self._changes, {}
                await self._send("UNSUBSCRIBE", [channel for channel, wanted in changes.items() if not wanted])
                await self._send("SUBSCRIBE", [channel for channel, wanted in changes.items() if wanted])
        except (*LOST, exceptions.RedisError):
            pass  # the reading task reconnects and subscribes to all wanted channels
        finally:
            self._flushing = None

    async def _send(self, verb: str, channels: list[bytes]) -> None:
        for first in range(0, len(channels), CHANNELS_AT_ONCE):
            some = channels[first : first + CHANNELS_AT_ONCE]
            if self._connection is None:
                return
            if verb == "SUBSCRIBE":
                self._unconfirmed.update(some)
            await _write(self._connection, self._prefix + verb, *some)

    # --- the connection -----------------------------------------------------------------------------------------------

    async def _keep_connected(self) -> None:
        failures = 0
        while True:
            try:
                connection = await self._connect()
            except (*LOST, exceptions.RedisError) as error:
                self._report_trouble(error)
                failures += 1
                await asyncio.sleep(BETWEEN_CONNECTIONS.delay(failures, random.random))
                continue
            failures = 0
            try:
                await self._serve_until_lost(connection)
            except (*LOST, exceptions.RedisError) as error:
                self._report_trouble(error)
                await asyncio.sleep(BETWEEN_CONNECTIONS.delay(failures, random.random))
            except Exception as error:  # keep trying: without this task the node receives nothing
                logger.exception("the subscriptions failed")
                self._report_trouble(error)
                await asyncio.sleep(BETWEEN_CONNECTIONS.cap)

    def _report_trouble(self, error: Exception) -> None:
        if not self.trouble:
            logger.warning("the subscriptions are interrupted", extra={"reason": str(error)})
        self.trouble = f"Redis cannot be listened to: {error}"

    async def _serve_until_lost(self, connection: AbstractConnection) -> None:
        self._connection = connection
        try:
            await self._serve(connection)
        finally:
            self._connection = None
            self._confirmed.clear()
            await connection.disconnect(nowait=True)

    async def _serve(self, connection: AbstractConnection) -> None:
        self._unconfirmed.clear()
        self._changes.clear()
        self._catching_up = set(self._wanted)
        await self._send("SUBSCRIBE", list(self._wanted))
        asked = False
        while True:
            answer = await connection.read_response(timeout=QUIET_SECONDS, disconnect_on_error=False)
            if answer is None:
                if asked:
                    raise exceptions.TimeoutError("it does not answer")
                asked = True
                await _write(connection, "PING")
                continue
            asked = False
            kind, channel, *rest = answer
            if kind in (b"message", b"smessage"):
                self._receive(channel, rest[0])
                continue
            behind = bool(self._catching_up)
            self._handle_confirmation(kind, channel)
            if behind and not self._catching_up:
                self.trouble = ""
                await self._reconnected()

    def _handle_confirmation(self, kind: bytes, channel: bytes) -> None:
        if kind in (b"subscribe", b"ssubscribe"):
            self._unconfirmed[channel] -= 1
            if self._unconfirmed[channel] <= 0:
                del self._unconfirmed[channel]
                self._catching_up.discard(channel)
                if channel in self._wanted:
                    self._confirmed.add(channel)
                if (waiting := self._waiting.pop(channel, None)) is not None and not waiting.done():
                    waiting.set_result(None)
        elif kind == b"sunsubscribe" and channel in self._wanted and not self._unconfirmed[channel]:
            raise exceptions.ConnectionError("the shard has moved to another server")


async def _write(connection: AbstractConnection, *command: bytes | str) -> None:
    if not connection.is_connected:  # the client would reconnect silently, without the subscriptions
        raise exceptions.ConnectionError("it was closed")
    await connection.send_command(*command, check_health=False)
