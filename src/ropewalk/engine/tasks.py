"""Keeps strong references to background tasks, cancels them when the node stops, and logs their exceptions."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Generator
from types import coroutine

logger = logging.getLogger("ropewalk.engine")


class Tasks:
    """The running tasks. A failure is logged and does not affect other tasks."""

    def __init__(self) -> None:
        self._running: dict[asyncio.Task[None], None] = {}  # in the order in which they began, to cancel them in that order
        self._loop: asyncio.AbstractEventLoop | None = None  # once known, not asked for with every task

    def spawn(self, work: Coroutine[object, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._running[task] = None
        task.add_done_callback(self._done)
        return task

    def start(self, work: Coroutine[object, None, None]) -> asyncio.Task[None] | None:
        """Run it now, up to its first wait. What is left then becomes a task; None if nothing is.

        Up to there it is no task, so that nothing in it may ask for the current one (`asyncio.timeout` does).
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
        """The same in the next turn of the event loop."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        self._loop.call_soon(self._start, work)

    def _start(self, work: Callable[[], Coroutine[object, None, None]]) -> None:
        self.start(work())

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
    """Goes on with a coroutine that waits for `awaited` already: the task that runs this waits in its place."""
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
