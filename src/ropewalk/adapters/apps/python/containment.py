"""Keeps an app's code from harming the server: it can end its own call only, and a handler that blocks the loop is logged.

Python ends the event loop when a task raises SystemExit or KeyboardInterrupt, and a coroutine can cancel the task it runs in.
So every call runs in a task of its own, and in that task and all that it starts these two become ordinary exceptions.
"""

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from contextvars import ContextVar, copy_context
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, TypeVar

from ropewalk.channels.handlers import handler_name, run
from ropewalk.model.errors import ApplicationError

logger = logging.getLogger("ropewalk.channels")

T = TypeVar("T")
Work = Coroutine[Any, Any, Any] | Generator[Any, None, Any]
TaskFactory = Callable[..., "asyncio.Future[Any]"]

CANCEL_SECONDS = 1.0
"""How long a cancelled call may take to end, before its caller stops waiting for it."""

BLOCKED_SECONDS = 1.0
WARNING_INTERVAL_SECONDS = 60.0
"""Between two warnings about the same handler."""

MAX_WARNED_HANDLERS = 1000
MAX_SHOWN_FRAMES = 4

_is_app_code: ContextVar[bool] = ContextVar("_is_app_code", default=False)
_running: set["asyncio.Task[Any]"] = set()


async def contained(work: Coroutine[Any, Any, T]) -> T:
    try:
        return await work
    except (SystemExit, KeyboardInterrupt) as error:
        raise ApplicationError(f"a task of the app raised {type(error).__name__}") from error


async def run_contained(work: Coroutine[Any, Any, T]) -> T:
    """Raises what the work raises, and ApplicationError if it has cancelled itself."""
    context = copy_context()
    context.run(_is_app_code.set, True)
    task = asyncio.get_running_loop().create_task(contained(work), context=context)
    _running.add(task)
    task.add_done_callback(_done)
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait([task], timeout=CANCEL_SECONDS)
        if not task.done():
            logger.warning("a handler ignores its cancellation and keeps running", extra=handler_fields(_task_frames(task)))
        raise
    if task.cancelled():
        logger.warning("a handler has cancelled its own call", extra={"handler": getattr(work, "__qualname__", "")})
        raise ApplicationError("a handler has cancelled its own call")
    return task.result()


def _done(task: "asyncio.Task[Any]") -> None:
    _running.discard(task)
    if not task.cancelled():
        task.exception()  # already logged; without this asyncio logs it again if no caller is left


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


class Watchdog:
    """Logs handlers that block the event loop, and with it every client. Made on the loop that it watches.

    A thread schedules a callback on the loop at intervals. If it does not run in time, the stack of the loop's thread shows
    the handler.
    """

    def __init__(self, blocked_seconds: float = BLOCKED_SECONDS) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._blocked_seconds = blocked_seconds
        self._stopped = threading.Event()
        self._warned: dict[str, float] = {}
        threading.Thread(target=self._watch, name="ropewalk-watchdog", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    def _watch(self) -> None:
        while not self._stopped.wait(self._blocked_seconds):
            alive = threading.Event()
            try:
                self._loop.call_soon_threadsafe(alive.set)
            except RuntimeError:  # the loop is closed
                return
            since = time.monotonic()
            if not alive.wait(self._blocked_seconds) and (name := self._warn()):
                while not alive.wait(self._blocked_seconds) and not self._stopped.is_set():
                    pass
                seconds = round(time.monotonic() - since, 1)
                logger.warning("the event loop is no longer blocked", extra={"handler": name, "seconds": seconds})

    def _warn(self) -> str:
        """Returns the handler's name if there was something to warn about, or ""."""
        fields = handler_fields(_thread_frames(sys._current_frames().get(self._loop_thread)), contained.__code__)
        name = fields.get("handler", "")
        now = time.monotonic()
        if not fields or now - self._warned.get(name, -WARNING_INTERVAL_SECONDS) < WARNING_INTERVAL_SECONDS:
            return ""
        if len(self._warned) >= MAX_WARNED_HANDLERS:
            self._warned.clear()
        self._warned[name] = now
        logger.warning(
            "a handler blocks the event loop and all clients: make it a plain function, or await instead of blocking",
            extra=fields,
        )
        return name


# --- stacks of frames -------------------------------------------------------------------------------------------------


def handler_fields(frames: Sequence[FrameType], task: CodeType | None = None) -> dict[str, str]:
    """Fields for the log: the `handler`, and `at` which lines of code it is. {} if no code of the app is running.

    `task`: the code in which tasks of the app run, which a handler started.
    """
    for marker in (run.__code__, task):
        for index, frame in enumerate(frames[:-1]):
            if frame.f_code is marker:
                inside = frames[index + 1 :]
                name = handler_name(frame.f_locals["handler"]) if marker is run.__code__ else inside[0].f_code.co_qualname
                return {"handler": name, "at": " > ".join(_place(each) for each in inside[-MAX_SHOWN_FRAMES:])}
    return {}


def _task_frames(task: "asyncio.Task[Any]") -> list[FrameType]:
    """The frames of a suspended task, outermost first."""
    return list(_awaited(task.get_coro()))


def _awaited(coroutine: Any) -> Iterator[FrameType]:
    while (frame := getattr(coroutine, "cr_frame", None)) is not None:
        yield frame
        coroutine = coroutine.cr_await


def _thread_frames(innermost: FrameType | None) -> list[FrameType]:
    """The frames of a running thread, outermost first."""
    frames = []
    while innermost is not None:
        frames.append(innermost)
        innermost = innermost.f_back
    return frames[::-1]


def _place(frame: FrameType) -> str:
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_name}"
