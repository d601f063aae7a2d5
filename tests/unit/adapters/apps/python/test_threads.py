"""Threads for plain functions: bounded, with the caller's context, and with errors for handlers that hang."""

import asyncio
import concurrent.futures
import contextvars
import gc
import threading
import weakref
from collections.abc import Callable, Iterator

import pytest

from ropewalk.adapters.apps.python.threads import Threads
from ropewalk.core.stats import Stats
from ropewalk.model.errors import Unavailable
from ropewalk.model.refusals import Refusal

user = contextvars.ContextVar("user", default="nobody")


class Gate:
    """A handler that signals when it has started, and returns when `open` is set."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.open = threading.Event()

    def wait(self) -> str:
        self.begun.release()
        assert self.open.wait(60)
        return "done"


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open.set()


@pytest.fixture
def threads() -> Iterator[Threads]:
    threads = Threads(2, Stats())
    yield threads
    threads.stop()


async def begin(threads: Threads, gate: Gate) -> asyncio.Task[object]:
    """Starts a call and waits until its handler runs."""
    call = asyncio.get_running_loop().create_task(threads(gate.wait))
    await asyncio.to_thread(gate.begun.acquire)
    return call


async def cancelled(call: asyncio.Task[object]) -> None:
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_handler_runs_in_a_thread_with_a_copy_of_the_callers_context(threads: Threads) -> None:
    user.set("Bo")
    seen = await threads(lambda a, b: (a + b, user.get(), threading.current_thread() is threading.main_thread()), 1, 2)
    assert seen == (3, "Bo", False)
    await threads(user.set, "Eve")
    assert user.get() == "Bo"


async def test_exception_of_a_handler_is_raised_unchanged(threads: Threads, subtests: pytest.Subtests) -> None:
    for error in [ValueError("x"), StopIteration(1), SystemExit(2), concurrent.futures.CancelledError(), TimeoutError()]:
        with subtests.test(error=error):

            def handler(error: BaseException = error) -> None:
                raise error

            found: BaseException | None = None
            try:
                await threads(handler)
            except BaseException as raised:
                # A coroutine may not raise StopIteration: Python makes it the cause of a RuntimeError.
                found = raised.__cause__ if isinstance(raised, RuntimeError) else raised
            assert found is error


async def test_threads_are_reused(threads: Threads) -> None:
    names = {await threads(lambda: threading.current_thread().name) for _ in range(20)}
    assert len(names) == 1


async def test_number_of_concurrent_handlers_is_bounded(threads: Threads, gate: Gate) -> None:
    running = [await begin(threads, gate) for _ in range(2)]
    third = asyncio.get_running_loop().create_task(threads(gate.wait))
    await asyncio.sleep(0)
    assert threads.waiting() == 1
    assert not gate.begun.acquire(blocking=False)
    gate.open.set()
    assert await asyncio.gather(*running, third) == ["done"] * 3
    assert threads.waiting() == 0


async def test_waiting_for_a_thread_does_not_count_as_call_time(threads: Threads, gate: Gate) -> None:
    running = [await begin(threads, gate) for _ in range(2)]
    seen: list[float | None] = []

    async def call() -> object:
        async with asyncio.timeout(60) as limit:
            seen.append(limit.when())
            return await threads.within(limit)(lambda: seen.append(limit.when()))

    waiting = asyncio.get_running_loop().create_task(call())
    await asyncio.sleep(0)
    assert threads.waiting() == 1
    gate.open.set()
    await asyncio.gather(*running, waiting)
    began, went_on = seen
    assert began is not None
    assert went_on is not None
    assert went_on > began


async def test_waiting_for_a_thread_times_out(gate: Gate) -> None:
    stats = Stats()
    threads = Threads(1, stats, wait_timeout=0.01)
    try:
        running = await begin(threads, gate)
        with pytest.raises(Unavailable, match="busy with other calls"):
            await threads(len, "")
        assert stats.refusals == {Refusal.APP_QUEUE: 1}
        gate.open.set()
        assert await running == "done"
    finally:
        threads.stop()


async def test_waiting_calls_fail_when_the_last_thread_hangs(gate: Gate) -> None:
    threads = Threads(1, Stats())
    try:
        lost = await begin(threads, gate)
        waiting = asyncio.get_running_loop().create_task(threads(len, ""))
        await asyncio.sleep(0)
        await cancelled(lost)
        with pytest.raises(Unavailable):
            await waiting
    finally:
        threads.stop()


async def test_call_cancelled_while_it_waits_never_runs(threads: Threads, gate: Gate) -> None:
    for _ in range(2):
        await begin(threads, gate)
    ran: list[int] = []
    waiting = asyncio.get_running_loop().create_task(threads(ran.append, 1))
    await asyncio.sleep(0)
    await cancelled(waiting)
    assert threads.waiting() == 0
    gate.open.set()
    await threads(ran.append, 2)
    assert ran == [2]


async def test_handler_that_outlives_its_call_is_logged_once(
    threads: Threads, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        await cancelled(await begin(threads, gate))
    [record] = [each for each in caplog.records if "holds a thread until it returns" in each.getMessage()]
    assert vars(record)["handler"] == "Gate.wait"


async def test_calls_fail_at_once_while_every_thread_hangs(threads: Threads, gate: Gate) -> None:
    held = [await begin(threads, gate) for _ in range(2)]
    assert not threads.exhausted()
    for call in held:
        await cancelled(call)
    assert threads.exhausted()
    with pytest.raises(Unavailable, match="all 2 threads are held"):
        await threads(len, "")
    gate.open.set()
    while threads.exhausted():
        await asyncio.sleep(0)
    assert await threads(len, "abc") == 3


async def test_idle_thread_holds_no_reference_to_the_last_call(threads: Threads) -> None:
    class Body:
        def handler(self) -> None: ...

    body = Body()
    gone = weakref.ref(body)
    handler: Callable[[], None] = body.handler
    await threads(handler)
    del body, handler
    async with asyncio.timeout(60):
        while gone() is not None:
            gc.collect()
            await asyncio.sleep(0)
