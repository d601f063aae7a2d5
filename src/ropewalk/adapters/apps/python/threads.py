"""Threads for handlers that are plain functions.

Not a ThreadPoolExecutor: the interpreter waits for its threads at exit, so that a handler that hangs would keep the server
from exiting. These threads are daemons.
"""

import asyncio
import contextvars
import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from queue import SimpleQueue

from msgspec import Struct

from ropewalk.adapters.apps.slots import Slots, StillWanted, always
from ropewalk.channels import Runner
from ropewalk.channels.handlers import handler_name
from ropewalk.core.stats import Stats
from ropewalk.model.errors import Unavailable
from ropewalk.model.limits import APP_LIMITS

logger = logging.getLogger("ropewalk.channels")


class Outcome(Struct, frozen=True):
    """The handler's result or exception. A record, since a future does not accept every exception."""

    value: object = None
    error: BaseException | None = None


class ThreadJob(Struct, frozen=True):
    future: Future[Outcome]
    work: Callable[[], object]

    def do(self) -> None:
        try:
            outcome = Outcome(self.work())
        except BaseException as error:
            outcome = Outcome(error=error)
        self.future.set_result(outcome)


class Threads:
    """A `Runner` for channels: at most `size` handlers at once, in threads that are made when needed; the others wait.

    A thread cannot be ended from outside: a handler that hangs keeps its thread, which is logged. When all threads are held
    like that, calls fail at once instead of waiting. Used from one event loop.
    """

    def __init__(self, size: int, stats: Stats, wait_timeout: float = APP_LIMITS.wait_timeout) -> None:
        self.size = size
        self._wait_timeout = wait_timeout
        self._slots = Slots(size, stats, max_wait=self._max_wait, clock=time.monotonic)
        self._started = 0
        self._jobs: SimpleQueue[ThreadJob | None] = SimpleQueue()
        self._abandoned = 0
        self._named: set[str] = set()

    async def __call__(self, handler: Callable[..., object], *args: object) -> object:
        """Raises what the handler raises, or `Unavailable`. It runs in a copy of the caller's context."""
        self.check()
        await self._slots.acquire()
        return await self._run(handler, args)

    def within(self, limit: asyncio.Timeout, wanted: StillWanted = always) -> Runner:
        """The runner of one call. Its timeout `limit` is paused while a handler waits for a thread.

        If the call is no longer `wanted` when the thread is free, the handler does not run.
        """

        async def run(handler: Callable[..., object], *args: object) -> object:
            self.check()
            with _paused(limit):
                await self._slots.acquire(wanted)
            return await self._run(handler, args)

        return run

    def waiting(self) -> int:
        """The number of handlers that wait for a thread."""
        return self._slots.waiting

    def check(self) -> None:
        """Raises `Unavailable` if all threads are held."""
        if self.exhausted():
            raise Unavailable(f"all {self.size} threads are held by handlers that do not return")

    def exhausted(self) -> bool:
        return self._abandoned >= self.size

    def stop(self) -> None:
        """Threads end as they become idle; this does not wait for them."""
        for _ in range(self._started):
            self._jobs.put(None)

    def _max_wait(self) -> float:
        return 0.0 if self.exhausted() else self._wait_timeout

    async def _run(self, handler: Callable[..., object], args: tuple[object, ...]) -> object:
        """Run in the acquired slot. It is released when the handler returns, even if the caller no longer waits."""
        context = contextvars.copy_context()
        running = self._submit(lambda: context.run(handler, *args))
        try:
            outcome = await asyncio.shield(running)
        except asyncio.CancelledError:
            if not running.done():
                self._abandon(running, handler)
            raise
        if outcome.error is not None:
            raise outcome.error
        return outcome.value

    def _submit(self, work: Callable[[], object]) -> "asyncio.Future[Outcome]":
        future: Future[Outcome] = Future()
        running = asyncio.wrap_future(future)
        running.add_done_callback(lambda _: self._slots.release())
        self._jobs.put(ThreadJob(future, work))
        if self._started < self._slots.active:
            self._started += 1
            threading.Thread(target=self._serve, name=f"ropewalk-channels-{self._started}", daemon=True).start()
        return running

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            job.do()
            del job  # else an idle thread would keep the last call's objects alive

    def _abandon(self, running: "asyncio.Future[Outcome]", handler: Callable[..., object]) -> None:
        self._abandoned += 1
        running.add_done_callback(self._abandoned_returned)
        self._slots.recheck()
        name = handler_name(handler)
        if name not in self._named:
            self._named.add(name)
            logger.warning(
                "a handler exceeded its timeout and holds a thread until it returns",
                extra={"handler": name, "threads": self.size},
            )

    def _abandoned_returned(self, _running: "asyncio.Future[Outcome]") -> None:
        self._abandoned -= 1


@contextmanager
def _paused(limit: asyncio.Timeout) -> Iterator[None]:
    loop, ends = asyncio.get_running_loop(), limit.when()
    if ends is None or limit.expired():
        yield
        return
    left = ends - loop.time()
    limit.reschedule(None)
    try:
        yield
    finally:
        limit.reschedule(loop.time() + left)
