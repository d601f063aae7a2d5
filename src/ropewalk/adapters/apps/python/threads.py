"""Threads for handlers that are plain functions.

Not a ThreadPoolExecutor: the interpreter waits for its threads at exit, so that one handler that hangs would keep the server
from ever ending. These threads are daemons.
"""

import asyncio
import contextvars
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue

from msgspec import Struct

from ropewalk.channels.running import name_of
from ropewalk.model.errors import Unavailable

logger = logging.getLogger("ropewalk.channels")


class Outcome(Struct, frozen=True):
    """What a handler gave or raised. A value, since some exceptions cannot travel through a future as they are."""

    value: object = None
    error: BaseException | None = None


class Job(Struct, frozen=True):
    future: Future[Outcome]
    work: Callable[[], object]

    def do(self) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            outcome = Outcome(self.work())
        except BaseException as error:
            outcome = Outcome(error=error)
        self.future.set_result(outcome)


class Threads:
    """A `Runner` for channels: at most `size` handlers at once, in threads that are made when needed; the others wait.

    A thread cannot be ended from outside: what hangs in one holds it, and that is said. When all are held nobody is kept
    waiting. Called from one event loop.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._started = 0
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._under_way: set[Future[Outcome]] = set()
        self._held: set[Future[Outcome]] = set()
        self._named: set[str] = set()

    async def __call__(self, handler: Callable[..., object], *args: object) -> object:
        """Raises what the handler raises, or `Unavailable`. It runs in a copy of the caller's context."""
        self.check()
        context = contextvars.copy_context()
        future = self._submit(lambda: context.run(handler, *args))
        try:
            outcome = await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if not future.cancel() and not future.done():
                self._hold(future, handler)
            raise
        finally:
            self._under_way.discard(future)
        if outcome.error is not None:
            raise outcome.error
        return outcome.value

    def waiting(self) -> int:
        """How many handlers wait for a thread."""
        return sum(not future.running() and not future.done() for future in self._under_way)

    def check(self) -> None:
        """Raises `Unavailable` while no handler could run."""
        if self.exhausted():
            raise Unavailable(f"all {self.size} threads are held by handlers that do not return")

    def exhausted(self) -> bool:
        self._held = {future for future in self._held if not future.done()}
        return len(self._held) >= self.size

    def stop(self) -> None:
        """Threads end as they become idle. Nothing waits for them."""
        for _ in range(self._started):
            self._jobs.put(None)

    def _submit(self, work: Callable[[], object]) -> Future[Outcome]:
        future: Future[Outcome] = Future()
        self._under_way.add(future)
        self._jobs.put(Job(future, work))
        if self._started < self.size and len(self._under_way) + len(self._held) > self._started:
            self._started += 1
            threading.Thread(target=self._serve, name=f"ropewalk-channels-{self._started}", daemon=True).start()
        return future

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            job.do()
            del job  # else an idle thread would keep the last call's objects alive

    def _hold(self, future: Future[Outcome], handler: Callable[..., object]) -> None:
        name = name_of(handler)
        self._held.add(future)
        if name not in self._named:
            self._named.add(name)
            logger.warning(
                "a handler goes on after its time was over, and holds a thread until it returns: a thread cannot be ended",
                extra={"handler": name, "threads": self.size},
            )
