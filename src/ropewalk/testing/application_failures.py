"""What every `ports.Application` must do when calls fail, hang and are given up, and at its start and stop."""

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from ropewalk.model.application import Action, CommandResult
from ropewalk.model.errors import ApplicationError, ServerError, Unanswered, Unavailable
from ropewalk.testing.application_orders import HANG, YES, Order, call, seat
from ropewalk.testing.application_rig import (
    ApplicationRig,
    ApplicationSession,
    ApplicationSetup,
    NoPublisher,
    failure_of,
    said,
    until,
)
from ropewalk.testing.auth import HOSTILE_IDENTIFIERS

IDLE = {"app_calls_active": 0.0, "app_calls_waiting": 0.0}
MANY = 20


class CallFailures(ApplicationRig):
    """What one call costs, and whom."""

    async def test_an_action_that_fails_concerns_its_call_only(self, tmp_path: Path) -> None:
        async with self.running(tmp_path) as (application, _):
            ann = ApplicationSession(application, "s-1")
            await ann.connect()
            await ann.subscribe()
            for data in (call(Order(fail=True)), '{"action":"unheard_of"}'):
                with pytest.raises(ApplicationError):
                    await ann.command(Action.PERFORM, seat(), data)
            assert said(await ann.perform(seat(), Order(say=("on",)))) == [(seat(), "on")]
            assert application.health() == ""

    async def test_a_subscription_that_fails_is_rejected_or_an_error(self, tmp_path: Path) -> None:
        async with self.running(tmp_path) as (application, _):
            ann = ApplicationSession(application, "s-1")
            await ann.connect()
            assert not await _granted(ann.subscribe(Order(fail=True, streams=("a",))))
            assert not await _granted(ann.command(Action.SUBSCRIBE, '{"channel":"UnheardOf"}'))
            assert (await ann.subscribe(number=1)).accepted

    async def test_what_clients_make_up_costs_its_own_call_at_most(self, tmp_path: Path) -> None:
        async with self.running(tmp_path) as (application, _):
            ann = ApplicationSession(application, "s-1")
            await ann.connect()
            await ann.subscribe()
            for case, text in HOSTILE_IDENTIFIERS.items():
                assert not await _granted(ann.command(Action.SUBSCRIBE, text)), case
                await _granted(ann.command(Action.PERFORM, seat(), text))
                await _granted(ann.command(Action.PERFORM, text, call()))
            assert (await ann.perform(seat())).accepted
            assert application.health() == ""

    async def test_every_call_that_is_not_answered_ends_in_time(self, tmp_path: Path) -> None:
        async with self.running(tmp_path, self.short) as (application, _):
            with pytest.raises(Unanswered):
                await ApplicationSession(application, "s-1", params={HANG: YES}).connect()
            with pytest.raises(Unanswered):
                await ApplicationSession(application, "s-2").subscribe(Order(hang=True))
            left = ApplicationSession(application, "s-3", params={HANG: YES})
            left.own = {seat(): {}}
            with pytest.raises(Unanswered):
                await left.restored("s-0")
            with pytest.raises(ServerError):  # an application that heard of it may not want to hear of it again
                await left.disconnect()

    async def test_a_call_that_is_not_answered_holds_up_nobody_else(self, tmp_path: Path) -> None:
        async with self.running(tmp_path) as (application, record):
            hanging = asyncio.ensure_future(ApplicationSession(application, "s-1").subscribe(Order(hang=True)))
            await record.heard("s-1", "subscribe")
            assert application.gauges()["app_calls_active"] == 1
            for number in range(MANY):
                assert (await ApplicationSession(application, f"t-{number}").connect()).accepted
            assert not hanging.done()
            await _cancelled(hanging)

    async def test_a_caller_who_is_gone_leaves_nothing_behind(self, tmp_path: Path) -> None:
        async with self.running(tmp_path) as (application, record):
            for number in range(3):
                hanging = asyncio.ensure_future(ApplicationSession(application, f"s-{number}").subscribe(Order(hang=True)))
                await record.heard(f"s-{number}", "subscribe")
                await _cancelled(hanging)
            await until(lambda: application.gauges().items() >= IDLE.items(), "no call is under way")
            assert application.health() == ""
            assert (await ApplicationSession(application, "t").connect()).accepted

    async def test_a_connect_that_nobody_waits_for_any_more_is_not_made(self, tmp_path: Path) -> None:
        async with self.running(tmp_path, concurrency=1) as (application, record):
            hanging = asyncio.ensure_future(ApplicationSession(application, "s-1").subscribe(Order(hang=True)))
            await record.heard("s-1", "subscribe")
            connecting = asyncio.ensure_future(ApplicationSession(application, "s-2").connect(wanted=lambda: False))
            await until(
                lambda: connecting.done() or application.gauges()["app_calls_waiting"] == 1,
                "a connect waits for its turn, or is answered",
            )
            waited = not connecting.done()
            await _cancelled(hanging)
            if waited:
                assert isinstance(await failure_of(connecting), Unavailable)
                assert record.kinds("s-2") == []
            else:  # calls do not wait here
                assert (await connecting).accepted


class ApplicationUpkeep(ApplicationRig):
    """Start, stop, health, gauges."""

    async def test_a_running_application_is_healthy_and_idle(self, tmp_path: Path) -> None:
        async with self.running(tmp_path) as (application, _):
            assert application.gauges().items() >= IDLE.items()
            await ApplicationSession(application, "s-1").connect()
            assert application.health() == ""
            assert application.gauges().items() >= IDLE.items()

    async def test_before_its_start_and_after_its_stop_it_is_unavailable(self, tmp_path: Path) -> None:
        async with self.serving(ApplicationSetup(tmp_path / "told.jsonl", self.short)) as application:
            assert application.health(), "it cannot be asked before its start, and calls itself healthy"
            await assert_unavailable(ApplicationSession(application, "s-1"))
            await application.start(NoPublisher())
            await application.stop()
            assert application.health(), "it cannot be asked after its stop, and calls itself healthy"
            await assert_unavailable(ApplicationSession(application, "s-2"))
            await application.stop()
        assert self.told(tmp_path / "told.jsonl") == []

    async def test_one_that_was_never_started_can_be_stopped(self, tmp_path: Path) -> None:
        async with self.serving(ApplicationSetup(tmp_path / "told.jsonl", self.short)) as application:
            await application.stop()

    async def test_a_call_under_way_when_it_stops_comes_to_an_end(self, tmp_path: Path) -> None:
        async with self.running(tmp_path, self.short) as (application, record):
            hanging = asyncio.ensure_future(ApplicationSession(application, "s-1").subscribe(Order(hang=True)))
            await until(lambda: hanging.done() or bool(record.of("s-1")), "the application hears of the subscribe")
            await application.stop()
            assert isinstance(await failure_of(hanging), ServerError)


async def assert_unavailable(session: ApplicationSession) -> None:
    asked = (
        session.connect,
        session.subscribe,
        lambda: session.perform(seat()),
        lambda: session.restored("s-0"),
        session.disconnect,
    )
    for ask in asked:
        with pytest.raises(Unavailable):
            await ask()


async def _granted(asking: Coroutine[Any, Any, CommandResult]) -> bool:
    """A refusal and a failure of the application are both an answer; anything else that is raised is not."""
    try:
        return (await asking).accepted
    except ServerError:
        return False


async def _cancelled(task: "asyncio.Future[Any]") -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
