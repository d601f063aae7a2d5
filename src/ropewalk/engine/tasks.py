"""Keeps strong references to background tasks, cancels them when the node stops, and logs their exceptions."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from types import coroutine

from ropewalk.core.stats import Histogram

logger = logging.getLogger("ropewalk.engine")

BETWEEN_SAMPLES = 0.1
STARTED_IN_A_TURN = 32
"""Commands of as many sessions: some 4 ms if all of them subscribe with history."""


class Tasks:
    """The running tasks. A failure is logged and does not affect other tasks."""

    def __init__(self) -> None:
        self._running: dict[asyncio.Task[None], None] = {}  # in start order, which is also the order of cancellation
        self._soon: deque[Callable[[], Coroutine[object, None, None]]] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None  # cached, not looked up for every task

    def spawn(self, work: Coroutine[object, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._running[task] = None
        task.add_done_callback(self._done)
        return task

    def start(self, work: Coroutine[object, None, None]) -> asyncio.Task[None] | None:
        """Run `work` now up to its first suspension, and the rest as a task. Returns None if it has finished.

        The first part does not run in a task, so it must not use `asyncio.timeout` or the current task.
        """
        try:
            awaited = work.send(None)
        except StopIteration:
            return None
        except Exception:
            logger.exception("background task failed")
            return None
        if isinstance(awaited, asyncio.Future):
            awaited._asyncio_future_blocking = False  # so that others may wait for it too, before the task does
        return self.spawn(_finish(work, awaited))

    def start_soon(self, work: Callable[[], Coroutine[object, None, None]]) -> None:
        """`start` in one of the next turns of the event loop: a few in each, so that thousands at once do not hold it."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        if not self._soon:
            self._loop.call_soon(self._start_some)
        self._soon.append(work)

    def _start_some(self) -> None:
        waiting = self._soon
        begun = 0
        try:
            while begun < min(STARTED_IN_A_TURN, len(waiting)):
                begun += 1
                self.start(waiting[begun - 1]())
        finally:
            for _ in range(begun):
                waiting.popleft()
            if waiting and self._loop is not None:
                self._loop.call_soon(self._start_some)

    async def watch_turns(self, observed: Histogram) -> None:
        """Observe how late a timer is: so long was the event loop held by something else."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + BETWEEN_SAMPLES
            await asyncio.sleep(BETWEEN_SAMPLES)
            observed.observe(max(0.0, loop.time() - due))

    def _done(self, task: asyncio.Task[None]) -> None:
        self._running.pop(task, None)
        if not task.cancelled() and (error := task.exception()):
            logger.error("background task failed", exc_info=error)

    async def cancel(self) -> None:
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)


async def _finish(work: Coroutine[object, None, None], awaited: object) -> None:
    await _resume(work, awaited)


@coroutine
def _resume(work: Coroutine[object, None, None], awaited: object) -> Generator[object, None, None]:
    """Continue a coroutine that is suspended at `awaited`: the task that runs this waits for it instead."""
    if isinstance(awaited, asyncio.Future):
        awaited._asyncio_future_blocking = True  # as if it was awaited here
    while True:
        try:
            yield awaited
        except BaseException as error:
            thrown: BaseException | None = error
        else:
            thrown = None
        try:
            awaited = work.send(None) if thrown is None else work.throw(thrown)
        except StopIteration:
            return
