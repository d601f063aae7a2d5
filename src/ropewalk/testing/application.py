"""Conformance suites for `ports.Application`, with the obedient application behind the adapter.

Invariant: they use the port and the orders only and do not depend on how the application is reached.
"""

import asyncio
from collections.abc import Coroutine
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from ropewalk.model.application import Action, CommandResult
from ropewalk.model.errors import ApplicationError, ServerError, Unanswered, Unavailable
from ropewalk.testing.application_calls import CommandCalls, SessionCalls
from ropewalk.testing.application_orders import HANG, YES, Order, call, seat
from ropewalk.testing.application_rig import (
    ApplicationRig,
    ApplicationSession,
    ApplicationSetup,
    NoPublisher,
    failure_of,
    said,
    until,
    until_answered,
)
from ropewalk.testing.auth import HOSTILE_IDENTIFIERS

IDLE = {"app_calls_active": 0.0, "app_calls_waiting": 0.0}
MANY = 20


class CallFailures(ApplicationRig):
    """Failures affect their own call only."""

    async def test_failed_action_does_not_affect_other_calls(self, tmp_path: Path) -> None:
        async with self.running(tmp_path) as (application, _):
            ann = ApplicationSession(application, "s-1")
            await ann.connect()
            await ann.subscribe()
            for data in (call(Order(fail=True)), '{"action":"unheard_of"}'):
                with pytest.raises(ApplicationError):
                    await ann.command(Action.PERFORM, seat(), data)
            assert said(await ann.perform(seat(), Order(say=("on",)))) == [(seat(), "on")]
            assert application.health() == ""

    async def test_failed_subscribe_is_rejected_or_an_error(self, tmp_path: Path) -> None:
        async with self.running(tmp_path) as (application, _):
            ann = ApplicationSession(application, "s-1")
            await ann.connect()
            assert not await _granted(ann.subscribe(Order(fail=True, streams=("a",))))
            assert not await _granted(ann.command(Action.SUBSCRIBE, '{"channel":"UnheardOf"}'))
            assert (await ann.subscribe(number=1)).accepted

    async def test_hostile_input_fails_its_own_call_at_most(self, tmp_path: Path) -> None:
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

    async def test_unanswered_calls_time_out(self, tmp_path: Path) -> None:
        async with self.running(tmp_path, self.short) as (application, _):
            await until_answered(ApplicationSession(application, "s-0"))  # a connection is open from here on
            left = ApplicationSession(application, "s-3", params={HANG: YES})
            left.own = {seat(): {}}
            connecting, subscribing, restoring = await asyncio.gather(
                ApplicationSession(application, "s-1", params={HANG: YES}).connect(),
                ApplicationSession(application, "s-2").subscribe(Order(hang=True)),
                left.restored("s-0"),
                return_exceptions=True,
            )
            assert isinstance(connecting, Unanswered), connecting
            assert isinstance(subscribing, Unanswered), subscribing
            assert isinstance(restoring, Unanswered), restoring
            with pytest.raises(ServerError):  # an application that received it need not accept it again
                await left.disconnect()

    async def test_unanswered_call_does_not_block_others(self, tmp_path: Path) -> None:
        async with self.running(tmp_path) as (application, record):
            hanging = asyncio.ensure_future(ApplicationSession(application, "s-1").subscribe(Order(hang=True)))
            await record.heard("s-1", "subscribe")
            assert application.gauges()["app_calls_active"] == 1
            for number in range(MANY):
                assert (await ApplicationSession(application, f"t-{number}").connect()).accepted
            assert not hanging.done()
            await _cancelled(hanging)

    async def test_cancelled_calls_leave_no_active_call(self, tmp_path: Path) -> None:
        async with self.running(tmp_path) as (application, record):
            for number in range(3):
                hanging = asyncio.ensure_future(ApplicationSession(application, f"s-{number}").subscribe(Order(hang=True)))
                await record.heard(f"s-{number}", "subscribe")
                await _cancelled(hanging)
            await until(lambda: application.gauges().items() >= IDLE.items(), "no call is active")
            assert application.health() == ""
            assert (await ApplicationSession(application, "t").connect()).accepted

    async def test_unwanted_connect_is_not_called(self, tmp_path: Path) -> None:
        async with self.running(tmp_path, concurrency=1) as (application, record):
            hanging = asyncio.ensure_future(ApplicationSession(application, "s-1").subscribe(Order(hang=True)))
            await record.heard("s-1", "subscribe")
            connecting = asyncio.ensure_future(ApplicationSession(application, "s-2").connect(wanted=lambda: False))
            await until(
                lambda: connecting.done() or application.gauges()["app_calls_waiting"] == 1,
                "a connect is queued or answered",
            )
            waited = not connecting.done()
            await _cancelled(hanging)
            if waited:
                assert isinstance(await failure_of(connecting), Unavailable)
                assert record.kinds("s-2") == []
            else:  # this adapter does not queue calls
                assert (await connecting).accepted


class ApplicationUpkeep(ApplicationRig):
    """Start, stop, health, gauges."""

    async def test_running_application_is_healthy_and_idle(self, tmp_path: Path) -> None:
        async with self.running(tmp_path) as (application, _):
            assert application.gauges().items() >= IDLE.items()
            await ApplicationSession(application, "s-1").connect()
            assert application.health() == ""
            assert application.gauges().items() >= IDLE.items()

    async def test_application_is_unavailable_before_start_and_after_stop(self, tmp_path: Path) -> None:
        async with self.serving(ApplicationSetup(tmp_path / "told.jsonl", self.short)) as application:
            assert application.health(), "reported as healthy before its start"
            await assert_unavailable(ApplicationSession(application, "s-1"))
            await application.start(NoPublisher())
            await application.stop()
            assert application.health(), "reported as healthy after its stop"
            await assert_unavailable(ApplicationSession(application, "s-2"))
            await application.stop()
        assert self.told(tmp_path / "told.jsonl") == []

    async def test_application_can_be_stopped_without_a_start(self, tmp_path: Path) -> None:
        async with self.serving(ApplicationSetup(tmp_path / "told.jsonl", self.short)) as application:
            await application.stop()

    async def test_pending_call_ends_at_stop(self, tmp_path: Path) -> None:
        async with self.running(tmp_path, self.short) as (application, record):
            hanging = asyncio.ensure_future(ApplicationSession(application, "s-1").subscribe(Order(hang=True)))
            await until(lambda: hanging.done() or bool(record.of("s-1")), "the application receives the subscribe")
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
    """Whether the subscription was accepted. A refusal and a failure of the application both count as rejected."""
    try:
        return (await asking).accepted
    except ServerError:
        return False


async def _cancelled(task: "asyncio.Future[Any]") -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


__all__ = ["ApplicationConformance", "RemoteApplicationConformance"]


class ApplicationConformance(SessionCalls, CommandCalls, CallFailures, ApplicationUpkeep):
    """Inherit it as `TestMyApplication` and fill `serving`. See `application_rig` and `application_orders`."""


class RemoteApplicationConformance(ApplicationConformance):
    """For applications in other processes, which can be unreachable. Fill `away` too."""

    def away(self) -> AbstractAsyncContextManager[None]:
        """Make the served application unreachable while entered; afterwards it is reachable at the same address."""
        raise NotImplementedError("stop the application, and start it again")

    async def test_unreachable_application_is_unavailable_until_it_returns(self, tmp_path: Path) -> None:
        async with self.running(tmp_path, self.short) as (application, record):
            await until_answered(ApplicationSession(application, "s-1"))
            async with self.away():
                await assert_unavailable(ApplicationSession(application, "s-2"))
                assert application.health()
            assert (await until_answered(ApplicationSession(application, "s-3"))).accepted
            assert application.health() == ""
            assert record.kinds("s-2") == []

    async def test_pending_call_ends_if_the_application_stops(self, tmp_path: Path) -> None:
        async with self.running(tmp_path, self.short) as (application, record):
            hanging = asyncio.ensure_future(ApplicationSession(application, "s-1").subscribe(Order(hang=True)))
            await until(lambda: hanging.done() or bool(record.of("s-1")), "the application receives the subscribe")
            async with self.away():
                assert isinstance(await failure_of(hanging), Unavailable)
