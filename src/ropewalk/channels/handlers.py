"""Runs handlers: `async def` in place, plain functions through a `Runner`. Contains their exceptions.

Only `Reject`, `ApplicationError`, `Unavailable`, or the cancellation of the call itself leave this module.
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from ropewalk.model.errors import ApplicationError, Unavailable

logger = logging.getLogger("ropewalk.channels")

Handler = Callable[..., Awaitable[object] | object]


class Reject(Exception):
    """Refuses a client: raised by `Connection.reject()` and `Channel.reject()`, or by yourself.

    In `on_connect` it closes the connection, in `subscribed` it rejects the subscription, in an action it refuses the call.
    The reason is logged, and not sent to the client; use `ActionError` to send it.
    """

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class ActionError(Reject):
    """Refuses an action, and sends the client the reason: `raise ActionError("that is too long", code="too_long")`.

    The caller gets `{"error": {"code": code, "message": message}}`. Outside of an action it is a `Reject`.
    """

    def __init__(self, message: str, code: str = "error") -> None:
        if not code:
            raise ValueError("an error needs a code")
        super().__init__(message)
        self.code = code


class BadCall(ApplicationError):
    """A client called an unknown channel or action, or sent data that cannot be read. The client gets the `code`."""

    def __init__(self, reason: str, code: str = "bad_data") -> None:
        super().__init__(reason)
        self.code = code


class Runner(Protocol):
    """Runs a handler that is not a coroutine function: the server in a thread, a test inline. May raise `Unavailable`."""

    async def __call__(self, handler: Callable[..., object], *args: object) -> object: ...


async def inline(handler: Callable[..., object], *args: object) -> object:
    """A runner without a thread."""
    return handler(*args)


async def run(runner: Runner, handler: Handler, *args: object) -> object:
    """Returns the handler's result."""
    if inspect.iscoroutinefunction(handler):
        return await handler(*args)
    answer = await runner(handler, *args)
    if inspect.isawaitable(answer):  # a plain function around an async one
        return await answer
    return answer


async def run_contained(runner: Runner, handler: Handler, *args: object) -> None:
    """Run a handler that cannot reject: startup, shutdown, on_disconnect. Raises ServerError."""
    name = handler_name(handler)
    try:
        with contained_errors(name):
            await run(runner, handler, *args)
    except Reject:
        logger.warning("%s cannot reject: there is no client to refuse", name)
        raise ApplicationError(f"{name} failed: it cannot reject") from None


def handler_name(handler: Callable[..., object]) -> str:
    """The name in its author's code: `connect`, `ChatChannel.speak`."""
    name: str = getattr(handler, "__qualname__", type(handler).__qualname__)
    return name.rpartition("<locals>.")[2]


@contextmanager
def contained_errors(name: str) -> Iterator[None]:
    """Wraps code of the application: its errors are logged with their traceback and become an ApplicationError."""
    task = asyncio.current_task()
    try:
        yield
    except Reject:
        raise
    except Unavailable as error:
        logger.warning("%s did not run", name, extra={"reason": str(error)})
        raise
    except asyncio.CancelledError:
        if _is_cancelled():
            logger.info("handler cancelled before it returned", extra={"handler": name})
            raise
        raise _failed(name, "CancelledError") from None
    except GeneratorExit:
        if asyncio.current_task() is not task:  # the handler was discarded unfinished, together with its task
            raise
        raise _failed(name, "GeneratorExit") from None
    except BaseException as error:  # sys.exit() in a handler must not end the server
        raise _failed(name, type(error).__name__) from None


def _failed(name: str, error: str) -> ApplicationError:
    logger.exception("%s failed", name)
    return ApplicationError(f"{name} failed: {error}")


def _is_cancelled() -> bool:
    """True if our call is cancelled, and not something that the handler was waiting for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
