"""An application that does as it is told and remembers what it was asked."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from ropewalk.model.application import Action, Admission, Answer, Call, Caller, Comeback, Farewell, Greeting
from ropewalk.model.errors import ServerError
from ropewalk.ports import Publisher

T = TypeVar("T")

CHAT = '{"channel":"ChatChannel","id":1}'
NEWS = '{"channel":"NewsChannel"}'


class Script:
    """`answers` are given in turn to commands, and then accepting ones; an exception among them is raised. While `held` is set
    to an event, every call waits for it."""

    def __init__(self, *answers: Answer | ServerError) -> None:
        self.admission: Admission | ServerError = Admission(True, "bo")
        self.greeting: Greeting | ServerError = Greeting()
        self.answers = deque(answers)
        self.calls: list[Call] = []
        self.told: list[str] = []
        self.callers: list[Caller] = []
        self.comebacks: list[Comeback] = []
        self.farewells: list[Farewell] = []
        self.refused_farewells: deque[ServerError] = deque()
        self.held: asyncio.Event | None = None

    async def start(self, publisher: Publisher) -> None:
        self.publisher = publisher
        self.told.append("start")

    async def stop(self) -> None:
        self.told.append("stop")

    async def connect(self, caller: Caller, wanted: Callable[[], bool] = lambda: True) -> Admission:
        self.told.append("connect")
        self.callers.append(caller)
        await self._hold()
        return _given(self.admission)

    async def command(self, call: Call) -> Answer:
        self.told.append(call.action)
        self.calls.append(call)
        await self._hold()
        default = Answer(streams=("s",) if call.action is Action.SUBSCRIBE else ())
        return _given(self.answers.popleft() if self.answers else default)

    async def restored(self, comeback: Comeback) -> Greeting:
        self.told.append("restored")
        self.comebacks.append(comeback)
        await self._hold()
        return _given(self.greeting)

    async def disconnect(self, farewell: Farewell) -> None:
        await self._hold()
        if self.refused_farewells:
            raise self.refused_farewells.popleft()
        self.told.append("disconnect")
        self.farewells.append(farewell)

    def trouble(self) -> str:
        return "the application is down" if self.held else ""

    def gauges(self) -> dict[str, float]:
        return {"app_calls_active": 0.0, "app_calls_waiting": 0.0}

    async def _hold(self) -> None:
        if self.held is not None:
            await self.held.wait()


def _given(answer: T | ServerError) -> T:
    if isinstance(answer, ServerError):
        raise answer
    return answer
