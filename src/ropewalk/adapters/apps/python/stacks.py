"""Which handler a stack of frames belongs to, and where in its code it is."""

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from ropewalk.channels.handlers import handler_name, run

MOST_FRAMES = 4
"""Of the code that a handler is in, innermost last."""


def frames_of(task: "asyncio.Task[Any]") -> list[FrameType]:
    """Those of a task that is suspended, outermost first."""
    return list(_awaited(task.get_coro()))


def frames_from(innermost: FrameType | None) -> list[FrameType]:
    """Those of a thread that is running, outermost first."""
    frames = []
    while innermost is not None:
        frames.append(innermost)
        innermost = innermost.f_back
    return frames[::-1]


def described(frames: Sequence[FrameType], task: CodeType | None = None) -> dict[str, str]:
    """For the log: the `handler`, and `at` which lines of code it is. {} where no code of the app is running.

    `task`: what tasks of the app run in, which are no handlers but were started by one.
    """
    for marker in (run.__code__, task):
        for index, frame in enumerate(frames[:-1]):
            if frame.f_code is marker:
                inside = frames[index + 1 :]
                name = handler_name(frame.f_locals["handler"]) if marker is run.__code__ else inside[0].f_code.co_qualname
                return {"handler": name, "at": " > ".join(_place(each) for each in inside[-MOST_FRAMES:])}
    return {}


def _awaited(coroutine: Any) -> Iterator[FrameType]:
    while (frame := getattr(coroutine, "cr_frame", None)) is not None:
        yield frame
        coroutine = coroutine.cr_await


def _place(frame: FrameType) -> str:
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_name}"
