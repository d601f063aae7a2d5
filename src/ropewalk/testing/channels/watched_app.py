"""The application under test: records what it refused and why, what its handlers raised, and pending disconnect calls.

Errors of handlers only go to the log, which is right for a server. So the log is where they are collected.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from ropewalk.channels.handlers import logger
from ropewalk.model.application import (
    CallContext,
    CommandCall,
    CommandResult,
    ConnectResult,
    DisconnectCall,
    RestoreCall,
    RestoreResult,
)
from ropewalk.model.errors import ServerError
from ropewalk.ports import Application, Publisher

_hearing: ContextVar["Watched | None"] = ContextVar("_hearing", default=None)


class Ear(logging.Handler):
    """Hears the errors of one watched app, and not those of another that is tested at the same time."""

    def __init__(self, watched: "Watched") -> None:
        super().__init__(logging.ERROR)
        self._watched = watched

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and _hearing.get() is self._watched:
            self._watched.errors.append(error)


class Watched:
    """Implements `ports.Application` by asking another one. `refusals`: why a session was last refused something, by sid."""

    def __init__(self, application: Application) -> None:
        self.errors: list[BaseException] = []
        self.refusals: dict[str, str] = {}
        self._application = application
        self._ear = Ear(self)
        self._disconnect_calls = 0
        self._all_said = asyncio.Event()
        self._all_said.set()

    async def all_said(self) -> None:
        """Until no disconnect call is in progress."""
        await self._all_said.wait()

    @property
    def disconnecting(self) -> bool:
        return self._disconnect_calls > 0

    async def start(self, publisher: Publisher) -> None:
        logger.addHandler(self._ear)
        with self._hearing():
            await self._application.start(publisher)

    async def stop(self) -> None:
        with self._hearing():
            await self._application.stop()

    def deaf(self) -> None:
        """Hear no more."""
        logger.removeHandler(self._ear)

    async def connect(self, context: CallContext, wanted: Callable[[], bool]) -> ConnectResult:
        with self._hearing():
            connect_result = await self._application.connect(context, wanted)
        if not connect_result.accepted:
            self.refusals[context.sid] = connect_result.reason
        return connect_result

    async def command(self, call: CommandCall) -> CommandResult:
        with self._hearing():
            answer = await self._application.command(call)
        if not answer.accepted:
            self.refusals[call.context.sid] = answer.reason
        return answer

    async def restored(self, restore_call: RestoreCall) -> RestoreResult:
        with self._hearing():
            return await self._application.restored(restore_call)

    async def disconnect(self, disconnect_call: DisconnectCall) -> None:
        self._disconnect_calls += 1
        self._all_said.clear()
        try:
            with self._hearing():
                await self._application.disconnect(disconnect_call)
        finally:
            self._disconnect_calls -= 1
            if not self._disconnect_calls:
                self._all_said.set()

    def health(self) -> str:
        return self._application.health()

    def gauges(self) -> dict[str, float]:
        return self._application.gauges()

    @contextmanager
    def _hearing(self) -> Iterator[None]:
        """Around a call: what it raises counts as an error too, unless it only reports one that was heard."""
        before = len(self.errors)
        token = _hearing.set(self)
        try:
            yield
        except ServerError as error:
            if len(self.errors) == before:
                self.errors.append(error)
            raise
        finally:
            _hearing.reset(token)
