"""A scripted application that records its calls."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from ropewalk.model.application import (
    Action,
    CallContext,
    CommandCall,
    CommandResult,
    ConnectResult,
    DisconnectCall,
    RestoreCall,
    RestoreResult,
)
from ropewalk.model.errors import ServerError
from ropewalk.ports import Publisher

T = TypeVar("T")

CHAT = '{"channel":"ChatChannel","id":1}'
NEWS = '{"channel":"NewsChannel"}'


class Script:
    """Returns `answers` to commands in turn, then accepts the rest; raises exceptions among them. While `held` is set
    to an event, every call waits for it. `events` has the calls in order."""

    def __init__(self, *answers: CommandResult | ServerError) -> None:
        self.connect_result: ConnectResult | ServerError = ConnectResult(True, "bo")
        self.restore_result: RestoreResult | ServerError = RestoreResult()
        self.answers = deque(answers)
        self.calls: list[CommandCall] = []
        self.events: list[str] = []
        self.callers: list[CallContext] = []
        self.restore_calls: list[RestoreCall] = []
        self.disconnect_calls: list[DisconnectCall] = []
        self.refused_disconnect_calls: deque[ServerError] = deque()
        self.held: asyncio.Event | None = None

    async def start(self, publisher: Publisher) -> None:
        self.publisher = publisher
        self.events.append("start")

    async def stop(self) -> None:
        self.events.append("stop")

    async def connect(self, context: CallContext, wanted: Callable[[], bool] = lambda: True) -> ConnectResult:
        self.events.append("connect")
        self.callers.append(context)
        await self._hold()
        return _result(self.connect_result)

    async def command(self, call: CommandCall) -> CommandResult:
        self.events.append(call.action)
        self.calls.append(call)
        await self._hold()
        default = CommandResult(streams=("s",) if call.action is Action.SUBSCRIBE else ())
        return _result(self.answers.popleft() if self.answers else default)

    async def restored(self, restore_call: RestoreCall) -> RestoreResult:
        self.events.append("restored")
        self.restore_calls.append(restore_call)
        await self._hold()
        return _result(self.restore_result)

    async def disconnect(self, disconnect_call: DisconnectCall) -> None:
        await self._hold()
        if self.refused_disconnect_calls:
            raise self.refused_disconnect_calls.popleft()
        self.events.append("disconnect")
        self.disconnect_calls.append(disconnect_call)

    def health(self) -> str:
        return "the application is down" if self.held else ""

    def gauges(self) -> dict[str, float]:
        return {"app_calls_active": 0.0, "app_calls_waiting": 0.0}

    async def _hold(self) -> None:
        if self.held is not None:
            await self.held.wait()


def _result(answer: T | ServerError) -> T:
    if isinstance(answer, ServerError):
        raise answer
    return answer
