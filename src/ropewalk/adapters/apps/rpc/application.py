"""The application port over RPC, common to gRPC and HTTP: converts records to messages and back, and makes the calls."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeVar

from ropewalk.adapters.apps.rpc import records
from ropewalk.adapters.apps.rpc.calls import Calls
from ropewalk.adapters.apps.rpc.messages import COMMAND, CONNECT, DISCONNECT, RESTORE, M, Method, Q
from ropewalk.adapters.apps.slots import StillWanted, always
from ropewalk.model.application import (
    CallContext,
    CommandCall,
    CommandResult,
    ConnectResult,
    DisconnectCall,
    RestoreCall,
    RestoreResult,
)
from ropewalk.model.errors import ApplicationError
from ropewalk.ports import Publisher

log = logging.getLogger("ropewalk.application")

PROTOCOL = "v1"
"""The version of the messages, sent with every call. Servers refuse unknown versions."""

T = TypeVar("T")


class UnknownMethod(ApplicationError):
    """The application does not have the method."""


class RpcApplication(ABC):
    """An application behind RPC. With `restore`, restored sessions are reported to it, unless it lacks the method."""

    def __init__(self, calls: Calls, restore: bool) -> None:
        self._calls = calls
        self._restore = restore

    @abstractmethod
    async def start(self, publisher: Publisher) -> None: ...

    @abstractmethod
    async def stop(self) -> None: ...

    @abstractmethod
    async def _ask(self, method: Method[Q, M], sid: str, request: Q, seconds: float) -> M:
        """Makes one attempt, as `AttemptFunction` describes. Raises UnknownMethod if the application lacks the method."""

    async def connect(self, context: CallContext, wanted: StillWanted = always) -> ConnectResult:
        return await self._call(CONNECT, context.sid, records.connection_request(context), records.connect_result, wanted)

    async def command(self, call: CommandCall) -> CommandResult:
        return await self._call(COMMAND, call.context.sid, records.command_message(call), records.command_result)

    async def restored(self, restore_call: RestoreCall) -> RestoreResult:
        if not self._restore:
            return RestoreResult()
        request = records.restore_request(restore_call)

        async def attempt(seconds: float) -> RestoreResult:
            try:
                return records.restore_result(await self._ask(RESTORE, restore_call.context.sid, request, seconds))
            except UnknownMethod:
                self._disable_restore()
                return RestoreResult()

        return await self._calls.make(attempt)

    async def disconnect(self, disconnect_call: DisconnectCall) -> None:
        await self._call(
            DISCONNECT, disconnect_call.context.sid, records.disconnect_request(disconnect_call), records.acknowledged
        )

    @property
    @abstractmethod
    def _started(self) -> bool:
        """True between start and stop."""

    def health(self) -> str:
        return self._calls.health() if self._started else "the connection to the application is closed"

    def gauges(self) -> dict[str, float]:
        return self._calls.gauges()

    async def _call(
        self, method: Method[Q, M], sid: str, request: Q, read: Callable[[M], T], wanted: StillWanted = always
    ) -> T:
        async def attempt(seconds: float) -> T:
            return read(await self._ask(method, sid, request, seconds))

        return await self._calls.make(attempt, wanted)

    def _disable_restore(self) -> None:
        if self._restore:
            log.info("the application does not implement Restore: restored sessions are not reported to it")
        self._restore = False
