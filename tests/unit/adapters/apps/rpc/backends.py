"""Scripted applications behind the real servers of these tests, and clients of them."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from ropewalk.adapters.apps.rpc.application import RpcApplication
from ropewalk.adapters.apps.rpc.calls import Calls
from ropewalk.adapters.apps.rpc.grpc import GrpcApplication
from ropewalk.adapters.apps.rpc.http import HttpApplication
from ropewalk.core.stats import Stats
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
from ropewalk.model.limits import AppLimits
from ropewalk.model.messages import Publication, Receipt, RemoteDisconnect
from ropewalk.ports import Application
from ropewalk.testing.clock import ManualClock
from tests.rpc_servers import GrpcServer, HttpServer

TIMEOUT = 60.0
CONTEXT = CallContext("sid", "http://x/cable", {"cookie": "a=1", "REMOTE_ADDR": "10.0.0.1"}, "", {"c": "1"})
WELCOME = ConnectResult(True, "me", ('{"type":"welcome"}',), {"seen": "1"})

T = TypeVar("T")
A = TypeVar("A", bound=Application)
Server = GrpcServer | HttpServer


class Scripted:
    """Takes the next step of its script at each call: raises an error, waits for an event or returns a record. After the last
    step it accepts every call. `asked` has all calls."""

    def __init__(self, *script: Any) -> None:
        self.script = deque(script)
        self.asked: list[Any] = []

    async def connect(self, context: CallContext) -> ConnectResult:
        return await self._next(context, WELCOME)

    async def command(self, call: CommandCall) -> CommandResult:
        return await self._next(call, CommandResult())

    async def restored(self, restore_call: RestoreCall) -> RestoreResult:
        return await self._next(restore_call, RestoreResult())

    async def disconnect(self, disconnect_call: DisconnectCall) -> None:
        await self._next(disconnect_call, None)

    async def _next(self, asked: object, otherwise: T) -> T:
        self.asked.append(asked)
        match self.script.popleft() if self.script else otherwise:
            case Exception() as error:
                raise error
            case asyncio.Event() as event:
                await event.wait()
                return otherwise
            case step:
                answer: T = step
                return answer


class Slow(Scripted):
    """Accepts every call. Each takes so many seconds of the clock."""

    def __init__(self, clock: ManualClock, seconds: float) -> None:
        super().__init__()
        self._clock = clock
        self._seconds = seconds

    async def _next(self, asked: object, otherwise: T) -> T:
        self._clock.advance(self._seconds)
        return await super()._next(asked, otherwise)


class NoPublisher:
    """RPC applications do not publish through the server's publisher."""

    async def publish(self, publications: Sequence[Publication]) -> list[Receipt]:
        raise AssertionError(publications)

    async def disconnect(self, order: RemoteDisconnect) -> int:
        raise AssertionError(order)


def calls(stats: Stats | None = None, limits: AppLimits | None = None, **options: Any) -> Calls:
    """With a timeout for a busy machine, unless the test sets another one."""
    return Calls(stats or Stats(), limits or AppLimits(command_timeout=TIMEOUT), **options)


def once(stats: Stats | None = None) -> Calls:
    """Never retries: the jitter makes every pause longer than the budget."""
    return calls(stats, chance=lambda: 1e9)


@asynccontextmanager
async def running(application: A) -> AsyncIterator[A]:
    await application.start(NoPublisher())
    try:
        yield application
    finally:
        await application.stop()


def asking(server: Server, calls: Calls, restore: bool = False) -> RpcApplication:
    if isinstance(server, GrpcServer):
        return GrpcApplication(server.host, calls, restore=restore)
    return HttpApplication(server.url, "", calls, restore=restore)


async def until_answered(ask: Callable[[], Awaitable[T]]) -> T:
    async with asyncio.timeout(TIMEOUT):
        while True:
            try:
                return await ask()
            except ServerError:
                await asyncio.sleep(0.02)
