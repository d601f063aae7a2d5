"""The conformance suite for applications passes a correct one and detects each faulty one."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import pytest
from msgspec.structs import replace

from ropewalk.model.application import (
    CallContext,
    CommandCall,
    CommandResult,
    ConnectResult,
    DisconnectCall,
    RestoreCall,
    RestoreResult,
)
from ropewalk.model.errors import ApplicationError, ServerError, Unanswered, Unavailable
from ropewalk.ports import Application, Publisher
from ropewalk.testing.application import RemoteApplicationConformance
from ropewalk.testing.application_rig import ApplicationSetup
from tests.conformance.applications.obedient_rpc import ObedientBackend
from tests.unit.testing.suites import failed_tests

T = TypeVar("T")

MISSES = 2


class DirectApplication:
    """A correct application: the scripted one, called directly, with limited concurrency."""

    def __init__(self, setup: ApplicationSetup) -> None:
        self.backend = ObedientBackend(setup.log)
        self.reachable = True
        self._timeout = setup.timeout
        self._running = False
        self._slots = asyncio.Semaphore(setup.concurrency)
        self._active = self._waiting = self._misses = 0

    async def start(self, publisher: Publisher) -> None:
        self._running = True

    async def stop(self) -> None:
        self._running = False

    async def connect(self, context: CallContext, wanted: Callable[[], bool]) -> ConnectResult:
        return await self._call(lambda: self.backend.connect(context), wanted)

    async def command(self, call: CommandCall) -> CommandResult:
        return await self._call(lambda: self.backend.command(call))

    async def restored(self, restore_call: RestoreCall) -> RestoreResult:
        return await self._call(lambda: self.backend.restored(restore_call))

    async def disconnect(self, disconnect_call: DisconnectCall) -> None:
        await self._call(lambda: self.backend.disconnect(disconnect_call))

    async def _call(self, ask: Callable[[], Awaitable[T]], wanted: Callable[[], bool] = lambda: True) -> T:
        self._waiting += 1
        try:
            await self._slots.acquire()
        finally:
            self._waiting -= 1
        self._active += 1
        try:
            if not wanted():
                raise Unavailable("no longer wanted")
            return await self._ask(ask)
        finally:
            self._active -= 1
            self._slots.release()

    async def _ask(self, ask: Callable[[], Awaitable[T]]) -> T:
        if not self._running:
            raise Unavailable("closed")
        if not self.reachable:
            self._misses += 1
            raise Unavailable("away")
        try:
            async with asyncio.timeout(self._timeout):
                answer = await ask()
        except TimeoutError:
            raise Unanswered("no answer") from None
        except ServerError:
            raise
        except Exception as error:
            raise ApplicationError(str(error)) from error
        self._misses = 0
        return answer

    def health(self) -> str:
        if not self._running:
            return "closed"
        return "away" if self._misses >= MISSES else ""

    def gauges(self) -> dict[str, float]:
        return {"app_calls_active": float(self._active), "app_calls_waiting": float(self._waiting)}


class DirectSuite(RemoteApplicationConformance):
    kind: type[DirectApplication] = DirectApplication
    application: DirectApplication
    guard = 0.5  # only a call that never ends takes any time
    short = 0.01

    @asynccontextmanager
    async def serving(self, setup: ApplicationSetup) -> AsyncIterator[Application]:
        self.application = self.kind(setup)
        yield self.application

    @asynccontextmanager
    async def away(self) -> AsyncIterator[None]:
        self.application.reachable = False
        yield
        self.application.reachable = True


# --- faulty applications ------------------------------------------------------------------------------------------------------


class LosesTheHeaders(DirectApplication):
    async def connect(self, context: CallContext, wanted: Callable[[], bool]) -> ConnectResult:
        return await super().connect(replace(context, headers={}), wanted)


class RaisesForARejection(DirectApplication):
    async def connect(self, context: CallContext, wanted: Callable[[], bool]) -> ConnectResult:
        result = await super().connect(context, wanted)
        if not result.accepted:
            raise ApplicationError("refused")
        return result


class MakesUnwantedCalls(DirectApplication):
    async def connect(self, context: CallContext, wanted: Callable[[], bool]) -> ConnectResult:
        return await super().connect(context, lambda: True)


class LosesTheSession(DirectApplication):
    async def command(self, call: CommandCall) -> CommandResult:
        return await super().command(replace(call, context=replace(call.context, sid="")))


class LosesTheState(DirectApplication):
    async def command(self, call: CommandCall) -> CommandResult:
        return await super().command(replace(call, state={}))


class LosesDeletions(DirectApplication):
    async def command(self, call: CommandCall) -> CommandResult:
        result = await super().command(call)
        return replace(result, own={key: value for key, value in result.own.items() if value})


class ReversesTransmissions(DirectApplication):
    async def command(self, call: CommandCall) -> CommandResult:
        result = await super().command(call)
        return replace(result, transmissions=result.transmissions[::-1])


class SortsStreams(DirectApplication):
    async def command(self, call: CommandCall) -> CommandResult:
        result = await super().command(call)
        return replace(result, streams=tuple(sorted(result.streams)))


class DropsTransmissionsOfRejections(DirectApplication):
    async def command(self, call: CommandCall) -> CommandResult:
        result = await super().command(call)
        return result if result.accepted else CommandResult(False)


class HidesFailures(DirectApplication):
    async def command(self, call: CommandCall) -> CommandResult:
        try:
            return await super().command(call)
        except ApplicationError:
            return CommandResult()


class PassesOnAllErrors(DirectApplication):
    async def command(self, call: CommandCall) -> CommandResult:
        return await self.backend.command(call)


class CallsTwice(DirectApplication):
    async def command(self, call: CommandCall) -> CommandResult:
        await super().command(call)
        return await super().command(call)


class DisconnectsTwice(DirectApplication):
    async def disconnect(self, disconnect_call: DisconnectCall) -> None:
        await super().disconnect(disconnect_call)
        await super().disconnect(disconnect_call)


class IgnoresRestores(DirectApplication):
    async def restored(self, restore_call: RestoreCall) -> RestoreResult:
        return RestoreResult()


class NeverTimesOut(DirectApplication):
    def __init__(self, setup: ApplicationSetup) -> None:
        super().__init__(replace(setup, timeout=1e6))


class OneAtATime(DirectApplication):
    def __init__(self, setup: ApplicationSetup) -> None:
        super().__init__(replace(setup, concurrency=1))


class CountsCancelledCalls(DirectApplication):
    async def _ask(self, ask: Callable[[], Awaitable[T]]) -> T:
        try:
            return await super()._ask(ask)
        except asyncio.CancelledError:
            self._active += 1
            raise


class AnswersAfterStop(DirectApplication):
    async def stop(self) -> None: ...


class AlwaysHealthy(DirectApplication):
    def health(self) -> str:
        return ""


class HealthyWhenClosed(DirectApplication):
    def health(self) -> str:
        return super().health() if self._running else ""


class CancelsCalls(DirectApplication):
    async def _ask(self, ask: Callable[[], Awaitable[T]]) -> T:
        try:
            return await super()._ask(ask)
        except Unanswered:
            raise asyncio.CancelledError from None


class NeverAnswers(DirectApplication):
    async def command(self, call: CommandCall) -> CommandResult:
        return await asyncio.Future()


class ReportsOutageAsApplicationError(DirectApplication):
    async def _ask(self, ask: Callable[[], Awaitable[T]]) -> T:
        if not self.reachable:
            raise ApplicationError("away")
        return await super()._ask(ask)


AWAY = "test_unreachable_application_is_unavailable_until_it_returns"
FAULTY = {
    LosesTheHeaders: "test_connect_call_has_the_url_and_the_headers",
    RaisesForARejection: "test_refused_client_is_not_an_error",
    MakesUnwantedCalls: "test_unwanted_connect_is_not_called",
    LosesTheSession: "test_concurrent_sessions_are_kept_apart",
    LosesTheState: "test_state_accumulates_over_calls",
    LosesDeletions: "test_state_accumulates_over_calls",
    ReversesTransmissions: "test_subscription_has_its_streams_and_transmissions_in_order",
    SortsStreams: "test_subscription_has_its_streams_and_transmissions_in_order",
    DropsTransmissionsOfRejections: "test_rejected_subscription_has_transmissions_and_no_streams",
    HidesFailures: "test_failed_action_does_not_affect_other_calls",
    PassesOnAllErrors: "test_hostile_input_fails_its_own_call_at_most",
    CallsTwice: "test_commands_are_called_once_in_order",
    DisconnectsTwice: "test_disconnect_call_has_all_state",
    IgnoresRestores: "test_restored_call_has_the_state_of_all_subscriptions",
    NeverTimesOut: "test_unanswered_calls_time_out",
    OneAtATime: "test_unanswered_call_does_not_block_others",
    CountsCancelledCalls: "test_cancelled_calls_leave_no_active_call",
    AnswersAfterStop: "test_application_is_unavailable_before_start_and_after_stop",
    AlwaysHealthy: AWAY,
    HealthyWhenClosed: "test_application_is_unavailable_before_start_and_after_stop",
    ReportsOutageAsApplicationError: AWAY,
}


async def test_correct_application_passes_all_tests(tmp_path: Path) -> None:
    class PatientSuite(DirectSuite):
        guard = 60.0

    assert await failed_tests(PatientSuite, tmp_path) == set()


@pytest.mark.parametrize(("kind", "test"), FAULTY.items(), ids=lambda each: getattr(each, "__name__", ""))
async def test_faulty_application_fails_its_test(kind: type[DirectApplication], test: str, tmp_path: Path) -> None:
    class FaultySuite(DirectSuite):
        pass

    FaultySuite.kind = kind
    assert await failed_tests(FaultySuite, tmp_path, test) == {test}


@pytest.mark.parametrize(
    ("kind", "test", "message"),
    [
        (LosesTheHeaders, "test_connect_call_has_the_url_and_the_headers", "did the URL and the headers reach it"),
        (CancelsCalls, "test_pending_call_ends_at_stop", "the call was cancelled"),
        (
            NeverAnswers,
            "test_cancelled_calls_leave_no_active_call",
            "not finished after 3 seconds; it waits until the application receives subscribe of the session s-0",
        ),
        (
            HealthyWhenClosed,
            "test_application_is_unavailable_before_start_and_after_stop",
            "reported as healthy before its start",
        ),
    ],
)
async def test_failure_message_explains_the_fault(
    kind: type[DirectApplication], test: str, message: str, tmp_path: Path
) -> None:
    suite = DirectSuite()
    suite.kind = kind
    suite.guard = 3.0 if kind is NeverAnswers else 60.0
    with pytest.raises(AssertionError, match=message):
        await getattr(suite, test)(tmp_path)
