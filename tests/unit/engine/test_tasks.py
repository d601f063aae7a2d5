"""Work starts synchronously, and continues as a task at its first wait."""

import asyncio
import logging
import time
from functools import partial

import pytest

from ropewalk.core.stats import Histogram
from ropewalk.engine import tasks as tasks_module
from ropewalk.engine.tasks import Tasks
from tests.unit.engine.workbench import settle


async def test_work_that_never_waits_runs_at_once_without_a_task() -> None:
    done: list[str] = []

    async def work() -> None:
        await _inner()
        done.append("done")

    async def _inner() -> None:
        done.append("inner")

    assert Tasks().start(work()) is None
    assert done == ["inner", "done"]


async def test_work_that_waits_continues_as_a_task() -> None:
    first: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    second: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    got: list[int] = []

    async def work() -> None:
        got.append(await first)
        await asyncio.sleep(0)
        got.append(await second)

    task = Tasks().start(work())
    assert task is not None
    first.set_result(1)
    await settle()
    assert got == [1]
    second.set_result(2)
    await task
    assert got == [1, 2]


async def test_future_awaited_by_another_task_is_still_awaited() -> None:
    awaited: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    got: list[int] = []

    async def work() -> None:
        got.append(await awaited)

    other = asyncio.get_running_loop().create_task(work())  # its first step runs before that of the task below
    task = Tasks().start(work())
    await settle()
    awaited.set_result(7)
    assert task is not None
    await asyncio.gather(other, task)
    assert got == [7, 7]


async def test_future_done_before_the_task_starts_is_not_awaited_again() -> None:
    awaited: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    got: list[int] = []

    async def work() -> None:
        got.append(await awaited)

    task = Tasks().start(work())
    awaited.set_result(7)
    assert task is not None
    await task
    assert got == [7]


async def test_error_of_an_awaited_future_is_raised_in_the_work() -> None:
    awaited: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    caught: list[str] = []

    async def work() -> None:
        try:
            await awaited
        except ValueError as error:
            caught.append(str(error))

    task = Tasks().start(work())
    awaited.set_exception(ValueError("no"))
    assert task is not None
    await task
    assert caught == ["no"]


async def test_cancelled_work_can_clean_up_and_wait_again() -> None:
    tasks = Tasks()
    cleaned: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.append("cleaned")

    task = tasks.start(work())
    assert task is not None
    await settle()
    await tasks.cancel()
    assert task.cancelled()
    assert cleaned == ["cleaned"]


@pytest.mark.parametrize("waits", [False, True])
async def test_failed_work_is_logged(waits: bool, caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        if waits:
            await asyncio.sleep(0)
        raise ValueError("broken")

    with caplog.at_level(logging.ERROR, "ropewalk.engine"):
        Tasks().start(work())
        await settle()
    assert [record.message for record in caplog.records] == ["background task failed"]


async def test_work_of_many_is_started_over_several_turns_in_order() -> None:
    tasks, started = Tasks(), list[int]()

    async def work(number: int) -> None:
        if number == 1:
            tasks.start_soon(partial(work, 100))
        started.append(number)

    for number in range(80):
        tasks.start_soon(partial(work, number))
    counts = []
    for _ in range(3):
        await asyncio.sleep(0)
        counts.append(len(started))
    assert counts == [32, 64, 81]
    assert started == [*range(80), 100]
    tasks.start_soon(partial(work, 200))
    await asyncio.sleep(0)
    assert started[-1] == 200


async def test_time_for_which_the_event_loop_is_held_is_observed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks_module, "BETWEEN_SAMPLES", 0.001)
    tasks, observed = Tasks(), Histogram((0.03,))
    watching = tasks.spawn(tasks.watch_turns(observed))
    await asyncio.sleep(0)
    time.sleep(0.05)  # holds the loop
    await asyncio.sleep(0.001)
    await asyncio.sleep(0)
    watching.cancel()
    assert observed.counts[-1] >= 1
