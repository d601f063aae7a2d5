"""An app's code can end its own call, and nothing else.

Python ends the event loop when a task raises SystemExit or KeyboardInterrupt, and a coroutine can cancel the task it runs in.
So every call runs in a task of its own, and in that task and all that it starts these two become ordinary exceptions.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Generator
from contextvars import ContextVar, copy_context
from typing import Any, TypeVar

from ropewalk.adapters.apps.python.stacks import described, frames_of
from ropewalk.model.errors import ApplicationError

logger = logging.getLogger("ropewalk.channels")

T = TypeVar("T")
Work = Coroutine[Any, Any, Any] | Generator[Any, None, Any]
TaskFactory = Callable[..., "asyncio.Future[Any]"]

GRACE = 1.0
"""Seconds that a call which is cancelled has to come to its end, before nobody waits for it any more."""

_is_app_code: ContextVar[bool] = ContextVar("_is_app_code", default=False)
_running: set["asyncio.Task[Any]"] = set()


async def contained(work: Coroutine[Any, Any, T]) -> T:
    try:
        return await work
    except (SystemExit, KeyboardInterrupt) as error:
        raise ApplicationError(f"a task of the app raised {type(error).__name__}") from error


async def run_contained(work: Coroutine[Any, Any, T]) -> T:
    """Raises what the work raises, and ApplicationError where it has cancelled itself."""
    context = copy_context()
    context.run(_is_app_code.set, True)
    task = asyncio.get_running_loop().create_task(contained(work), context=context)
    _running.add(task)
    task.add_done_callback(_done)
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait([task], timeout=GRACE)
        if not task.done():
            logger.warning("a handler goes on although it was cancelled", extra=described(frames_of(task)))
        raise
    if task.cancelled():
        logger.warning("a handler has cancelled its own call", extra={"handler": getattr(work, "__qualname__", "")})
        raise ApplicationError("a handler has cancelled its own call")
    return task.result()


def _done(task: "asyncio.Task[Any]") -> None:
    _running.discard(task)
    if not task.cancelled():
        task.exception()  # nobody may be waiting for it any more, and the log has it


class ContainedTasks:
    """While it is installed, the tasks that an app's code starts are contained too."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._before: TaskFactory | None = self._loop.get_task_factory()
        self._loop.set_task_factory(self._make)

    def remove(self) -> None:
        if self._loop.get_task_factory() == self._make:
            self._loop.set_task_factory(self._before)

    def _make(self, loop: asyncio.AbstractEventLoop, work: Work, /, **options: Any) -> "asyncio.Future[Any]":
        if _is_app_code.get() and isinstance(work, Coroutine):
            work = contained(work)
        return self._before(loop, work, **options) if self._before else asyncio.Task(work, loop=loop, **options)
