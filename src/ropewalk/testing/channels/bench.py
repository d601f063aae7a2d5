"""What a test of channels runs on: the real engine and the memory backend, the app behind them, and a clock that stands still.

Invariant: nothing waits for time. What a test has caused is done when the call that caused it returns.
"""

import asyncio
from collections.abc import Sequence

from ropewalk.adapters.apps.python.application import PythonApplication
from ropewalk.adapters.backends.memory import MemoryBackend
from ropewalk.channels import App
from ropewalk.core.credentials import Forwarding
from ropewalk.core.rules import Rulebook
from ropewalk.core.stats import Stats
from ropewalk.engine.context import Access, EngineContext
from ropewalk.engine.node import Node
from ropewalk.engine.session import Session
from ropewalk.model.commands import Command
from ropewalk.model.limits import AppLimits, Limits
from ropewalk.model.rules import StreamRules
from ropewalk.model.sessions import ConnectRequest
from ropewalk.protocol.websocket_frame import CableCodec
from ropewalk.testing.channels.connection import DirectConnection
from ropewalk.testing.channels.watched_app import Watched
from ropewalk.testing.clock import ManualClock

# As the server's defaults are, but for what goes by the time of day: clients are not paced, and a return is never too slow.
LIMITS = Limits(ping_interval=0, command_rate=0, disconnect_rate=0, resume_timeout=86400)
ONE_AT_A_TIME = 1  # handlers that are plain functions run in one thread, so that they run in one order
CODEC = CableCodec()


class Bench:
    """`headers` and `timeout` are as in the server's settings of these names."""

    def __init__(self, app: App, headers: Sequence[str], timeout: float) -> None:
        self.clock = ManualClock()
        self.headers = tuple(name.lower() for name in headers)
        stats, rules = Stats(), Rulebook(StreamRules())
        self.backend = MemoryBackend(rules, self.clock)
        served = PythonApplication(lambda: app, stats, AppLimits(threads=ONE_AT_A_TIME, timeout=timeout), directory="")
        self.app = Watched(served)
        self.node = Node(
            EngineContext(LIMITS, rules, stats, self.clock),
            self.backend,
            Access(application=self.app, forward=Forwarding(self.headers)),
        )
        self._raised = 0

    async def start(self) -> None:
        """Raises what a startup handler raised."""
        try:
            await self.node.start()
        except BaseException:
            self.app.deaf()
            self.raise_errors()
            raise

    async def stop(self) -> None:
        try:
            await self.node.stop()
        finally:
            self.app.deaf()

    def open(self, request: ConnectRequest, link: DirectConnection) -> Session:
        return self.node.open(request, link, CODEC)

    async def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        await self.node.upkeep()
        await self.finish()

    async def handle(self, session: Session, command: Command) -> bool:
        """True if it was granted. Goes on by itself if the test gives up: half a command would not be like the server."""
        self.app.refusals.pop(session.sid, None)
        granted = await asyncio.shield(session.submit(command))
        await self.settle()
        return granted

    async def settle(self) -> None:
        """Until what was published is delivered, and the sessions that ended are kept or the app has heard of them."""
        departing = self.node.sessions.departing
        while departing or self._disconnect_calls_wait() or self.app.disconnecting:
            if departing:
                await asyncio.wait([session.leaving for session in departing.values() if session.leaving])
            elif self.app.disconnecting:
                await self.app.all_said()
            else:
                await asyncio.sleep(0)
        await asyncio.sleep(0)  # what a tick brings to a connection is written at its end

    async def finish(self) -> None:
        """Settle, and raise what handlers raised meanwhile."""
        await self.settle()
        self.raise_errors()

    def _disconnect_calls_wait(self) -> bool:
        return self.node.disconnect_queue.free_slots() < LIMITS.disconnect_backlog

    def raise_errors(self) -> None:
        """What handlers raised and no call has raised yet."""
        fresh, self._raised = self.app.errors[self._raised :], len(self.app.errors)
        if len(fresh) > 1:
            raise ExceptionGroup("more than one handler failed", [_as_exception(error) for error in fresh])
        if fresh:
            raise _as_exception(fresh[0])


def _as_exception(error: BaseException) -> Exception:
    """One that does not end the test run: a handler may have called sys.exit()."""
    if isinstance(error, Exception):
        return error
    wrapped = RuntimeError(f"a handler raised {error!r}")
    wrapped.__cause__ = error
    return wrapped
