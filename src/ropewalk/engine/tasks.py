"""Keeps strong references to background tasks, cancels them when the node stops, and logs their exceptions."""

import asyncio
import logging
from collections.abc import Coroutine

logger = logging.getLogger("ropewalk.engine")


class Tasks:
    """The running tasks. A failure is logged and does not affect other tasks."""

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
