"""Connections to the server of one shard, and their errors.

Invariant: `Unavailable` means that the server did not execute the command; `Unanswered` means that this is unknown. A
connection with a missing answer is closed, so that an answer is never matched to another command.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any

from redis import exceptions
from redis.asyncio.connection import AbstractConnection

from ropewalk.connections.redis import CLOSED
from ropewalk.model.errors import Unanswered, Unavailable

MAX_LINKS = 16
"""Concurrent commands per node and shard, without appends. Further ones wait."""

WAIT_SECONDS = 2.0

Connect = Callable[[], Awaitable[AbstractConnection]]
"""Opens a connection to the current server of the shard."""

_NOTHING_DONE = re.compile(
    r"\b(LOADING|READONLY|MISCONF|OOM|CLUSTERDOWN|MASTERDOWN|BUSY|TRYAGAIN|NOREPLICAS|NOAUTH|WRONGPASS|NOPERM|MOVED|ASK)\b"
)
_NOTHING_DONE_TYPES = (
    exceptions.BusyLoadingError,
    exceptions.ReadOnlyError,
    exceptions.OutOfMemoryError,
    exceptions.MasterDownError,
    exceptions.AuthenticationError,
    exceptions.AuthenticationWrongNumberOfArgsError,
    exceptions.NoPermissionError,
    exceptions.ClusterDownError,
    exceptions.TryAgainError,
    exceptions.MovedError,
    exceptions.AskError,
)
_REFUSALS = (exceptions.ResponseError, exceptions.BusyLoadingError, exceptions.AuthenticationError)
LOST = (exceptions.ConnectionError, exceptions.TimeoutError, OSError, asyncio.TimeoutError, CLOSED)


def done_nothing(error: Exception) -> bool:
    """Whether the error means that the server did not execute the command."""
    return isinstance(error, _NOTHING_DONE_TYPES) or _NOTHING_DONE.search(str(error)) is not None


class RedisLink:
    """One connection, one command at a time."""

    def __init__(self, connection: AbstractConnection) -> None:
        self._connection = connection

    @property
    def usable(self) -> bool:
        """Whether the connection is open. False also if the server has closed it."""
        connection = self._connection
        return connection.is_connected and connection._reader is not None and not connection._reader.at_eof()

    async def ask(self, *command: Any) -> Any:
        """Raises `Unanswered`, `Unavailable` if the connection is already closed, and errors of the server unchanged."""
        if not self._connection.is_connected:  # the client would reconnect silently, perhaps to another server
            raise Unavailable("the connection to Redis was closed")
        try:
            await self._connection.send_command(*command, check_health=False)
            return await self._connection.read_response(disconnect_on_error=False)
        except _REFUSALS:
            raise
        except LOST as error:
            await self.close()
            raise Unanswered(f"Redis does not answer: {error}") from None
        except BaseException:  # cancelled: an answer may still come
            await self.close()
            raise

    async def close(self) -> None:
        await self._connection.disconnect(nowait=True)


class RedisLinks:
    """A bounded number of links to one shard."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._idle: list[RedisLink] = []
        self._slots = asyncio.Semaphore(MAX_LINKS)

    async def open(self) -> RedisLink:
        """Raises `Unavailable`."""
        try:
            return RedisLink(await self._connect())
        except (*LOST, exceptions.RedisError) as error:
            raise Unavailable(f"Redis cannot be reached: {error}") from None

    async def ask(self, call: Callable[[RedisLink], Awaitable[Any]]) -> Any:
        """Raises `Unavailable` if no link is free in time."""
        if self._slots.locked():
            await self._wait()
        else:
            await self._slots.acquire()
        try:
            link = await self.take()
            try:
                return await call(link)
            finally:
                await self.give_back(link)
        finally:
            self._slots.release()

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await self._slots.acquire()
        except TimeoutError:
            raise Unavailable("too many concurrent requests to Redis") from None

    async def take(self) -> RedisLink:
        while self._idle:
            if (link := self._idle.pop()).usable:
                return link
            await link.close()
        return await self.open()

    async def give_back(self, link: RedisLink) -> None:
        if link.usable:
            self._idle.append(link)
        else:  # the server has closed it; close this end too
            await link.close()

    async def close(self) -> None:
        while self._idle:
            await self._idle.pop().close()
