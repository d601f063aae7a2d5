"""Retries, slots and health of calls, on a manual clock."""

import asyncio
import logging
from collections.abc import Coroutine
from functools import partial
from typing import Any

import pytest

from ropewalk.adapters.apps.rpc.calls import UNHEALTHY_SECONDS, ApplicationUnreachable, Busy, Calls
from ropewalk.adapters.apps.slots import StillWanted, always
from ropewalk.core.stats import Stats
from ropewalk.model.errors import ApplicationError, Unavailable
from ropewalk.model.limits import AppLimits
from ropewalk.model.refusals import Refusal
from tests.unit.adapters.apps.rpc.manual_time import ManualTime
from tests.waiting import settle


class Rig:
    """Calls on a manual clock, and an application that follows a script."""

    def __init__(self, chance: float = 1.0, **limits: Any) -> None:
        self.time = ManualTime()
        self.stats = Stats()
        self.calls = Calls(self.stats, AppLimits(**limits), clock=self.time.clock, sleep=self.time.sleep, chance=lambda: chance)
        self.asked: list[tuple[float, float]] = []
        self.began = self.time.now

    async def ask(self, *script: Exception | float | str, wanted: StillWanted = always) -> str:
        """Each attempt takes the next step: an error to raise, seconds to wait before the next step, or the answer."""
        steps = iter(script)

        async def attempt(seconds: float) -> str:
            self.asked.append((round(self.time.now - self.began, 6), round(seconds, 6)))
            for step in steps:
                match step:
                    case Exception():
                        raise step
                    case str():
                        return step
                    case pause:
                        await self.time.sleep(pause)
            raise ApplicationUnreachable("the script is over")

        return await self.calls.make(attempt, wanted)

    def begin(self, *script: Exception | float | str, wanted: StillWanted = always) -> "asyncio.Task[str]":
        return asyncio.ensure_future(self.ask(*script, wanted=wanted))

    def attempted_at(self) -> list[float]:
        return [when for when, _ in self.asked]

    def gauges(self) -> tuple[float, float]:
        gauges = self.calls.gauges()
        return gauges["app_calls_active"], gauges["app_calls_waiting"]

    async def run(self, work: "Coroutine[Any, Any, str] | asyncio.Task[str]", seconds: float = 100.0) -> str:
        task = asyncio.ensure_future(work)
        await self.time.advance(seconds)
        assert task.done(), "still under way"
        return task.result()


async def test_first_attempt_may_take_the_whole_budget() -> None:
    rig = Rig()
    assert await rig.ask("yes") == "yes"
    assert rig.asked == [(0.0, 3.0)]
    assert (rig.stats.app_calls, rig.stats.app_calls_failed, rig.stats.app_calls_retried) == (1, 0, 0)


async def test_request_timeout_bounds_one_attempt() -> None:
    rig = Rig(request_timeout=0.5, command_timeout=0.8)
    assert await rig.run(rig.ask(0.4, ApplicationUnreachable("down"), "yes")) == "yes"
    assert rig.asked == [(0.0, 0.5), (0.5, 0.3)]


# --- Retries ---------------------------------------------------------------------------------------------------------


async def test_retries_back_off_exponentially() -> None:
    rig = Rig()
    down = ApplicationUnreachable("down")
    with pytest.raises(Unavailable, match="down"):
        await rig.run(rig.ask(*[down] * 20))
    assert rig.attempted_at()[:5] == [0.0, 0.1, 0.3, 0.7, 1.5]
    retried = len(rig.asked) - 1
    assert (rig.stats.app_calls, rig.stats.app_calls_failed, rig.stats.app_calls_retried) == (1, 1, retried)


async def test_last_attempts_use_the_rest_of_the_budget() -> None:
    rig = Rig()
    with pytest.raises(Unavailable, match="down"):
        await rig.run(rig.ask(*[ApplicationUnreachable("down")] * 20))
    assert rig.attempted_at()[4:] == [1.5, 2.25, 2.625, 2.8125, 2.9125]
    assert all(when + seconds == pytest.approx(3.0) for when, seconds in rig.asked)


async def test_retry_succeeds_within_the_budget() -> None:
    rig = Rig()
    assert await rig.run(rig.ask(*[ApplicationUnreachable("down")] * 6, "back")) == "back"
    assert rig.attempted_at()[-1] == 2.625


async def test_busy_application_is_retried_sooner() -> None:
    rig = Rig()
    assert await rig.run(rig.ask(Busy("full"), Busy("full"), Busy("full"), "yes")) == "yes"
    assert rig.attempted_at() == [0.0, 0.01, 0.03, 0.07]
    assert (rig.stats.app_calls_failed, rig.stats.app_calls_retried) == (0, 3)


async def test_each_reason_to_retry_has_its_own_backoff() -> None:
    rig = Rig()
    assert await rig.run(rig.ask(ApplicationUnreachable("down"), Busy("full"), "yes")) == "yes"
    assert rig.attempted_at() == [0.0, 0.1, 0.11]


async def test_jitter_shortens_a_pause() -> None:
    rig = Rig(chance=0.5)
    assert await rig.run(rig.ask(ApplicationUnreachable("down"), "yes")) == "yes"
    assert rig.attempted_at() == [0.0, 0.075]


async def test_permanent_errors_are_not_retried(subtests: pytest.Subtests) -> None:
    for error in [ApplicationError("it broke"), Unavailable("no answer in time")]:
        with subtests.test(error=error):
            rig = Rig()
            with pytest.raises(type(error), match=str(error)):
                await rig.ask(error, "yes")
            assert (rig.stats.app_calls_failed, rig.stats.app_calls_retried) == (1, 0)


async def test_time_of_attempts_counts_for_the_budget() -> None:
    rig = Rig()
    with pytest.raises(Unavailable):
        await rig.run(rig.ask(2.95, ApplicationUnreachable("lost"), "yes"))
    assert rig.asked == [(0.0, 3.0)]


# --- Slots -----------------------------------------------------------------------------------------------------------


async def test_concurrency_is_bounded_and_waiting_calls_keep_their_order() -> None:
    rig = Rig(concurrency=2)
    tasks = [rig.begin(1.0, str(number)) for number in range(5)]
    await settle()
    assert rig.gauges() == (2, 3)
    await rig.time.advance(10)
    assert [task.result() for task in tasks] == ["0", "1", "2", "3", "4"]
    assert rig.asked == [(0.0, 3.0), (0.0, 3.0), (1.0, 3.0), (1.0, 3.0), (2.0, 3.0)]
    assert rig.gauges() == (0, 0)


async def test_many_calls_to_a_slow_application_all_succeed() -> None:
    rig = Rig(concurrency=28)
    tasks = [rig.begin(0.05, "yes") for _ in range(2000)]
    await rig.time.advance(3.6)
    assert [task.result() for task in tasks] == ["yes"] * 2000
    assert rig.calls.health() == ""
    assert rig.stats.app_calls_failed == 0


async def test_waiting_for_a_slot_before_a_retry_does_not_count_for_the_budget() -> None:
    rig = Rig(concurrency=1)
    asking = rig.begin(Busy("full"), "yes")
    await settle()
    slow = rig.begin(20.0, "at last")
    await rig.time.advance(20.0)
    assert await rig.run(slow, 0.0) == "at last"
    assert await rig.run(asking, 0.0) == "yes"
    assert rig.asked[-1] == (20.0, 2.99)


async def test_waiting_for_a_slot_times_out() -> None:
    rig = Rig(concurrency=1, wait_timeout=7.0)
    slow = rig.begin(10.0, "at last")
    await settle()
    late = rig.begin("yes")
    await rig.time.advance(6.9)
    assert not late.done()
    await rig.time.advance(0.1)
    with pytest.raises(Unavailable, match="busy with other calls"):
        late.result()
    assert not slow.done()
    assert rig.gauges() == (1, 0)
    assert rig.stats.refusals == {Refusal.APP_QUEUE: 1}
    assert await rig.run(slow) == "at last"
    assert await rig.ask("the slot is free") == "the slot is free"


async def test_call_of_a_client_that_left_is_not_made() -> None:
    rig, gone = Rig(concurrency=1), set[int]()
    slow = rig.begin(1.0, "at last")
    await settle()
    waiting = [rig.begin("yes", wanted=partial(lambda number: number not in gone, number)) for number in range(4)]
    await settle()
    gone.update((0, 1, 3))
    assert await rig.run(slow, 1.0) == "at last"
    assert waiting[2].result() == "yes"
    assert [isinstance(task.exception(), Unavailable) for task in waiting] == [True, True, False, True]
    assert len(rig.asked) == 2
    assert rig.calls.health() == ""
    assert rig.gauges() == (0, 0)


async def test_call_between_two_attempts_holds_no_slot() -> None:
    rig = Rig(concurrency=1)
    away = rig.begin(ApplicationUnreachable("down"), "back")
    await settle()
    assert rig.gauges() == (0, 1)
    assert await rig.ask("me first") == "me first"
    assert await rig.run(away) == "back"


async def test_calls_to_an_unreachable_application_fail_within_the_budget() -> None:
    rig = Rig()
    down = [ApplicationUnreachable("down")] * 20
    tasks = [rig.begin(*down) for _ in range(500)]
    await rig.time.advance(3.0)
    assert all(isinstance(task.exception(), Unavailable) for task in tasks)
    assert (rig.stats.app_calls, rig.stats.app_calls_failed) == (500, 500)
    assert rig.gauges() == (0, 0)


async def test_waiting_time_is_shortened_while_the_application_hangs() -> None:
    rig = Rig(concurrency=28)
    tasks = [rig.begin(3.0, Unavailable("no answer in time")) for _ in range(500)]
    await rig.time.advance(3.0)
    assert rig.calls.health() != ""
    assert sum(task.done() for task in tasks) >= 500 - 28
    late = rig.begin("yes")
    await rig.time.advance(3.0)
    assert all(isinstance(task.exception(), Unavailable) for task in tasks)
    assert len(rig.asked) <= 2 * 28
    assert late.result() == "yes"
    assert rig.gauges() == (0, 0)


async def test_call_beyond_the_queue_limit_is_refused_at_once() -> None:
    rig = Rig(concurrency=1, queue=2)
    tasks = [rig.begin(1.0, "yes") for _ in range(3)]
    await settle()
    refused = rig.begin("yes")
    await settle()
    with pytest.raises(Unavailable, match=r"full \(2 calls\)"):
        refused.result()
    assert rig.stats.refusals == {Refusal.APP_QUEUE: 1}
    assert rig.gauges() == (1, 2)
    await rig.time.advance(10)
    assert [task.result() for task in tasks] == ["yes"] * 3


async def test_cancelled_call_frees_its_slot_and_is_not_a_failure() -> None:
    rig = Rig(concurrency=1)
    asking, waiting, pausing = rig.begin(1.0, "yes"), rig.begin("yes"), rig.begin("yes")
    await settle()
    for task in (asking, waiting):
        task.cancel()
    await settle()
    assert asking.cancelled()
    assert waiting.cancelled()
    assert await pausing == "yes"
    assert rig.gauges() == (0, 0)
    assert rig.stats.app_calls_failed == 0


# --- Health ----------------------------------------------------------------------------------------------------------


async def miss(rig: Rig, times: int) -> None:
    for _ in range(times):
        with pytest.raises(Unavailable):
            await rig.ask(Unavailable("no answer in time"))


async def test_three_unanswered_calls_in_a_row_are_unhealthy_until_the_next_answer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "ropewalk.application")
    rig = Rig()
    await miss(rig, 2)
    assert rig.calls.health() == ""
    await miss(rig, 3)
    assert rig.calls.health() == "the application does not respond"
    await rig.ask("yes")
    assert rig.calls.health() == ""
    assert [record.message for record in caplog.records] == [
        "the application does not respond",
        "the application responds again",
    ]


async def test_answer_resets_the_count_of_unanswered_calls() -> None:
    rig = Rig()
    await miss(rig, 2)
    with pytest.raises(ApplicationError):
        await rig.ask(ApplicationError("it broke"))
    await miss(rig, 2)
    assert rig.calls.health() == ""


async def test_calls_that_never_got_a_slot_do_not_affect_health() -> None:
    rig = Rig(concurrency=1, wait_timeout=3.0)
    slow = rig.begin(10.0, "at last")
    late = [rig.begin("yes") for _ in range(5)]
    await rig.time.advance(3.0)
    assert all(isinstance(task.exception(), Unavailable) for task in late)
    assert rig.calls.health() == ""
    assert await rig.run(slow) == "at last"


async def test_unhealthy_state_expires_without_calls() -> None:
    rig = Rig()
    await miss(rig, 3)
    rig.time.now += UNHEALTHY_SECONDS
    assert rig.calls.health() != ""
    rig.time.now += 1
    assert rig.calls.health() == ""
    await miss(rig, 1)
    assert rig.calls.health() != ""
