"""Runs handlers: async ones in place, others through a `Runner`. Contains their exceptions.

Only `Reject`, `ApplicationError`, `Unavailable`, or the cancellation of the call itself leave this module.
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from ropewalk.channels.errors import Reject
from ropewalk.model.errors import ApplicationError, Unavailable

logger = logging.getLogger("ropewalk.channels")

Handler = Callable[..., Awaitable[object] | object]


class Runner(Protocol):
    """Runs a handler that is no coroutine function: the server in a thread, a test at once. May raise `Unavailable`."""

    async def __call__(self, handler: Callable[..., object], *args: object) -> object: ...


async def inline(handler: Callable[..., object], *args: object) -> object:
    """The runner that runs it here and now."""
    return handler(*args)


async def run(runner: Runner, handler: Handler, *args: object) -> object:
    """What the handler returned."""
    if inspect.iscoroutinefunction(handler):
        return await handler(*args)
    answer = await runner(handler, *args)
    if inspect.isawaitable(answer):  # a plain function around an async one
        return await answer
    return answer


async def run_alone(runner: Runner, handler: Handler, *args: object) -> None:
    """For a handler that is about nobody who could be rejected."""
    name = name_of(handler)
    try:
        with guarded(name):
            await run(runner, handler, *args)
    except Reject:
        logger.warning("%s rejects where nobody asks", name)
        raise ApplicationError(f"{name} failed: there is nobody to reject") from None


def name_of(handler: Callable[..., object]) -> str:
    """As its author knows it: `connect`, `ChatChannel.speak`."""
    name: str = getattr(handler, "__qualname__", type(handler).__qualname__)
    return name.rpartition("<locals>.")[2]


@contextmanager
def guarded(name: str) -> Iterator[None]:
    """Around what an author wrote: its errors are logged here, with their traceback, and become an ApplicationError."""
    task = asyncio.current_task()
    try:
        yield
    except Reject:
        raise
    except Unavailable as error:
        logger.warning("%s cannot do its work", name, extra={"reason": str(error)})
        raise
    except asyncio.CancelledError:
        if _is_cancelled():
            logger.info("a handler was stopped before it was done", extra={"handler": name})
            raise
        raise _failed(name, "CancelledError") from None
    except GeneratorExit:
        if asyncio.current_task() is not task:  # the handler was thrown away unfinished, together with its task
            raise
        raise _failed(name, "GeneratorExit") from None
    except BaseException as error:  # sys.exit() in a handler must not take the server along
        raise _failed(name, type(error).__name__) from None


def _failed(name: str, error: str) -> ApplicationError:
    logger.exception("%s failed", name)
    return ApplicationError(f"{name} failed: {error}")


def _is_cancelled() -> bool:
    """True if it is our call that is cancelled, and not something that the handler was waiting for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
