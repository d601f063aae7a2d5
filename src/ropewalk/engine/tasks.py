"""Background tasks with an owner: none is lost to the garbage collector, none outlives the node, none dies unheard."""

import asyncio
import logging
from collections.abc import Coroutine

logger = logging.getLogger("ropewalk.engine")


class Tasks:
    """A bag of running tasks. A failure is logged and stays with its task."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()):
            logger.error("background task failed", exc_info=error)

    async def cancel(self) -> None:
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
