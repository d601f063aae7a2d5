"""A handler can end only its own call, with any exception and any cancellation."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any

import pytest

from ropewalk.adapters.apps.python import containment
from ropewalk.adapters.apps.python.containment import ContainedTasks, run_contained
from ropewalk.channels import App, Channel, action
from ropewalk.core.stats import Stats
from ropewalk.model.errors import ApplicationError, Unavailable
from ropewalk.model.limits import AppLimits
from tests.unit.adapters.apps.python.running_apps import perform, running


class Odd(BaseException):
    """An exception that no code expects."""


LETHAL = [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError(), Odd(), StopIteration()]


def room(**actions: Callable[..., Any]) -> App:
    app = App()
    app.channel("Room")(type("Room", (Channel,), {name: action(each) for name, each in actions.items()}))
    return app


def raising(error: BaseException) -> dict[str, Callable[..., Any]]:
    async def here(self: Any) -> None:
        raise error

    def thread(self: Any) -> None:
        raise error

    async def task(self: Any) -> None:
        async def inner() -> None:
            raise error

        await asyncio.get_running_loop().create_task(inner())

    async def group(self: Any) -> None:
        async def inner() -> None:
            raise error

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(inner())
            await asyncio.Event().wait()

    async def fine(self: Any) -> None:
        self.transmit("fine")

    return {"here": here, "thread": thread, "task": task, "group": group, "fine": fine}


async def test_any_exception_of_a_handler_fails_its_call_only(subtests: pytest.Subtests) -> None:
    rows: list[tuple[BaseException, str]] = [
        (error, where)
        for error in LETHAL
        for where in ("here", "thread", "task", "group")
        # A task that is cancelled does not end its group.
        if not (where == "group" and isinstance(error, asyncio.CancelledError))
    ]
    for error, where in rows:
        with subtests.test(error=error, where=where):
            stats = Stats()
            async with running(room(**raising(error)), stats) as application, asyncio.timeout(60):
                for _ in range(2):
                    with pytest.raises(ApplicationError, match=rf"Room\.{where} failed"):
                        await application.command(perform(where))
                assert len((await application.command(perform("fine"))).transmissions) == 1
            assert (stats.app_calls, stats.app_calls_failed) == (3, 2)


async def test_handler_that_cancels_its_own_task_fails_its_call_only() -> None:
    async def suicidal(self: Any) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.Event().wait()

    async with running(room(act=suicidal)) as application:
        with pytest.raises(ApplicationError, match="cancelled its own call"):
            await application.command(perform("act"))
    current = asyncio.current_task()
    assert current is not None
    assert not current.cancelling()


async def test_background_task_that_raises_system_exit_ends_only_itself() -> None:
    started: list[asyncio.Task[None]] = []

    async def begin(self: Any) -> None:
        async def background() -> None:
            raise SystemExit(3)

        started.append(asyncio.get_running_loop().create_task(background()))

    async with running(room(act=begin)) as application:
        await application.command(perform("act"))
        await asyncio.wait(started)
        assert isinstance(started[0].exception(), ApplicationError)


async def test_handler_that_ignores_cancellation_is_abandoned_and_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(containment, "CANCEL_SECONDS", 0.0)
    over = asyncio.Event()

    async def stubborn(self: Any) -> None:
        while not over.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await over.wait()

    async with running(room(act=stubborn), limits=AppLimits(timeout=0)) as application:
        with pytest.raises(Unavailable, match="did not respond within"):
            await application.command(perform("act"))
        over.set()
    [record] = [each for each in caplog.records if "ignores its cancellation" in each.getMessage()]
    assert vars(record)["handler"].endswith("stubborn")
    assert "test_containment.py" in vars(record)["at"]


async def test_cancelled_call_cancels_its_handler(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ropewalk.channels")
    begun = asyncio.Event()

    async def hang(self: Any) -> None:
        begun.set()
        await asyncio.Event().wait()

    async with running(room(act=hang)) as application:
        call = asyncio.get_running_loop().create_task(application.command(perform("act")))
        await begun.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    assert "handler cancelled before it returned" in caplog.text


async def test_other_task_factories_still_apply() -> None:
    loop, made = asyncio.get_running_loop(), list[object]()

    def factory(loop: asyncio.AbstractEventLoop, work: Any, /, **options: Any) -> "asyncio.Task[Any]":
        made.append(work.__qualname__)
        return asyncio.Task(work, loop=loop, **options)

    async def work() -> int:
        return 1

    loop.set_task_factory(factory)
    tasks = ContainedTasks()
    try:
        assert await loop.create_task(work(), name="mine") == 1
        assert await run_contained(work()) == 1
    finally:
        tasks.remove()
    assert loop.get_task_factory() is factory
    loop.set_task_factory(None)
    assert made == [work.__qualname__, "contained"]
