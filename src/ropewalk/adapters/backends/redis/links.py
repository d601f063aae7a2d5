"""Connections to the server of one shard, and what their errors mean.

Invariant: `Unavailable` is raised only where the server has done nothing; where that is not known it is `Unanswered`. A
connection on which an answer is missing is closed, so that no answer is ever taken for that of another question.
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
"""Questions that one node asks one shard at a time, apart from its appends. Others wait."""

WAIT_SECONDS = 2.0

Connect = Callable[[], Awaitable[AbstractConnection]]
"""Opens a connection to the server that has the shard now."""

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
    """Whether an answer of the server says that it has not done what it was asked for."""
    return isinstance(error, _NOTHING_DONE_TYPES) or _NOTHING_DONE.search(str(error)) is not None


class RedisLink:
    """One connection, one question at a time."""

    def __init__(self, connection: AbstractConnection) -> None:
        self._connection = connection

    @property
    def usable(self) -> bool:
        """Whether it is open as far as is known. A server that ended has closed it, and this has been noticed."""
        connection = self._connection
        return connection.is_connected and connection._reader is not None and not connection._reader.at_eof()

    async def ask(self, *command: Any) -> Any:
        """Raises `Unanswered`, or `Unavailable` where it is closed already; what the server answers instead of doing it is
        raised as the client's own error."""
        if not self._connection.is_connected:  # the client would connect again by itself, perhaps to another server
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
        """Raises `Unavailable` where no link is free in time."""
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
            raise Unavailable("too much is asked of Redis") from None

    async def take(self) -> RedisLink:
        while self._idle:
            if (link := self._idle.pop()).usable:
                return link
            await link.close()
        return await self.open()

    async def give_back(self, link: RedisLink) -> None:
        if link.usable:
            self._idle.append(link)
        else:  # the server closed it, but this end is open until it is closed too
            await link.close()

    async def close(self) -> None:
        while self._idle:
            await self._idle.pop().close()
