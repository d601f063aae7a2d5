"""RPC applications over gRPC and HTTP, with real servers in this process."""

import asyncio
import logging
from collections.abc import Callable

import pytest

from ropewalk.core.stats import Stats
from ropewalk.model.application import (
    Action,
    CallContext,
    CommandCall,
    CommandResult,
    ConnectResult,
    DisconnectCall,
    PresenceUpdate,
    RestoreCall,
    RestoreResult,
)
from ropewalk.model.errors import ApplicationError, Unavailable
from ropewalk.model.limits import AppLimits
from ropewalk.model.presence import Member
from ropewalk.testing.clock import ManualClock
from tests.rpc_servers import GrpcServer, HttpServer
from tests.unit.adapters.apps.rpc.backends import (
    CONTEXT,
    TIMEOUT,
    WELCOME,
    Scripted,
    Server,
    Slow,
    asking,
    calls,
    once,
    running,
    until_answered,
)
from tests.waiting import until

Serve = Callable[[Scripted], Server]

KNOWN = CallContext(CONTEXT.sid, CONTEXT.url, CONTEXT.headers, '{"user":1}', CONTEXT.state)
SUBSCRIPTIONS = {"a": {"$w": "chat", "ж": "\u2028"}, "b": {}}


@pytest.fixture(params=[GrpcServer, HttpServer], ids=["grpc", "http"])
def serve(request: pytest.FixtureRequest) -> Serve:
    chosen: Serve = request.param
    return chosen


# --- Calls and results -----------------------------------------------------------------------------------------------


async def test_connect_call_and_its_result_arrive(serve: Serve) -> None:
    backend, stats = Scripted(), Stats()
    async with serve(backend) as server, running(asking(server, calls(stats))) as application:
        assert await application.connect(CONTEXT) == WELCOME
    assert backend.asked == [CONTEXT]
    assert (stats.app_calls, stats.app_calls_failed, stats.app_calls_retried) == (1, 0, 0)


async def test_refused_client_is_not_a_failed_call(serve: Serve) -> None:
    refused = ConnectResult(False, "", ('{"type":"disconnect"}',), {}, "who are you")
    stats = Stats()
    async with serve(Scripted(refused)) as server, running(asking(server, calls(stats))) as application:
        assert await application.connect(CONTEXT) == refused
    assert stats.app_calls_failed == 0


async def test_application_error_has_the_message_of_the_application(serve: Serve) -> None:
    backend, stats = Scripted(ApplicationError("undefined method"), ApplicationError("")), Stats()
    async with serve(backend) as server, running(asking(server, calls(stats))) as application:
        with pytest.raises(ApplicationError, match="undefined method"):
            await application.connect(CONTEXT)
        with pytest.raises(ApplicationError, match="without a message"):
            await application.command(CommandCall(KNOWN, Action.SUBSCRIBE, "a"))
    assert (stats.app_calls, stats.app_calls_failed, stats.app_calls_retried) == (2, 2, 0)


async def test_command_and_its_result_arrive_with_all_fields(serve: Serve, subtests: pytest.Subtests) -> None:
    for action in Action:
        with subtests.test(action=action):
            call = CommandCall(
                KNOWN, action, '{"channel":"Chat"}', {"$w": "chat", "n": "1"}, '{"action":"speak","text":"ж 😀 \\u0000"}'
            )
            answer = CommandResult(
                accepted=action is not Action.SUBSCRIBE,
                transmissions=("one", "two"),
                streams=("chat", "чат"),
                stopped=("old",),
                stop_all=True,
                state={"c": ""},
                own={"n": "2"},
                presence_update=PresenceUpdate(True, Member("7", b'{"name":"ann"}')),
                disconnect=True,
                reason="because",
            )
            backend = Scripted(answer)
            async with serve(backend) as server, running(asking(server, calls())) as application:
                assert await application.command(call) == answer
                assert await application.command(call) == CommandResult()
            assert backend.asked == [call, call]


async def test_disconnect_call_has_the_state_of_every_subscription(serve: Serve) -> None:
    disconnect_call = DisconnectCall(KNOWN, SUBSCRIPTIONS)
    backend = Scripted(None, ApplicationError("no"))
    async with serve(backend) as server, running(asking(server, calls())) as application:
        await application.disconnect(disconnect_call)
        with pytest.raises(ApplicationError, match="no"):
            await application.disconnect(disconnect_call)
    assert backend.asked[0] == disconnect_call


async def test_every_call_has_session_id_and_protocol_version(serve: Serve) -> None:
    async with serve(Scripted()) as server, running(asking(server, calls(), restore=True)) as application:
        await application.connect(CONTEXT)
        await application.command(CommandCall(KNOWN, Action.SUBSCRIBE, "a"))
        await application.restored(RestoreCall(KNOWN, "former"))
        await application.disconnect(DisconnectCall(KNOWN))
    prefix = "" if serve is GrpcServer else "x-anycable-meta-"
    seen = [(each["method"], each[f"{prefix}sid"], each[f"{prefix}protov"]) for each in server.seen]
    assert seen == [(method, "sid", "v1") for method in ("Connect", "Command", "Restore", "Disconnect")]


# --- Restore calls ---------------------------------------------------------------------------------------------------


async def test_restore_call_and_its_result_arrive(serve: Serve) -> None:
    restore_result = RestoreResult(("hello again",), {"c": ""}, {"a": {"$w": ""}}, disconnect=True)
    restore_call = RestoreCall(KNOWN, "former", SUBSCRIPTIONS)
    backend = Scripted(restore_result)
    async with serve(backend) as server, running(asking(server, calls(), restore=True)) as application:
        assert await application.restored(restore_call) == restore_result
    assert backend.asked == [restore_call]


async def test_restore_call_is_not_sent_unless_enabled(serve: Serve) -> None:
    backend, stats = Scripted(), Stats()
    async with serve(backend) as server, running(asking(server, calls(stats))) as application:
        assert await application.restored(RestoreCall(KNOWN, "former")) == RestoreResult()
    assert (backend.asked, stats.app_calls) == ([], 0)


async def test_unimplemented_restore_is_called_once(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ropewalk.application")
    backend, stats = Scripted(NotImplementedError()), Stats()
    async with serve(backend) as server, running(asking(server, calls(stats), restore=True)) as application:
        for _ in range(3):
            assert await application.restored(RestoreCall(KNOWN, "former")) == RestoreResult()
    assert len(backend.asked) == 1
    assert stats.app_calls_failed == 0
    assert len([record for record in caplog.records if "Restore" in record.message]) == 1


# --- Outages ---------------------------------------------------------------------------------------------------------


async def test_call_to_a_hanging_application_times_out(serve: Serve) -> None:
    stats = Stats()
    async with (
        serve(Scripted(asyncio.Event())) as server,
        running(asking(server, calls(stats, AppLimits(command_timeout=0.05)))) as application,
    ):
        with pytest.raises(Unavailable):
            await application.connect(CONTEXT)
    assert (stats.app_calls_failed, stats.app_calls_retried) == (1, 0)


async def test_time_spent_waiting_for_a_slot_does_not_count_as_call_time(serve: Serve) -> None:
    stats, clock = Stats(), ManualClock()
    async with serve(Slow(clock, TIMEOUT / 4)) as server:
        limits = AppLimits(command_timeout=TIMEOUT, concurrency=1, wait_timeout=10 * TIMEOUT)
        asked = calls(stats, limits, clock=clock)
        async with running(asking(server, asked)) as application:
            assert await asyncio.gather(*(application.connect(CONTEXT) for _ in range(20))) == [WELCOME] * 20
            assert application.health() == ""
    assert (stats.app_calls_failed, stats.app_calls_retried) == (0, 0)


async def test_slow_call_does_not_delay_others(serve: Serve) -> None:
    event = asyncio.Event()
    backend = Scripted(event)
    async with serve(backend) as server, running(asking(server, calls())) as application:
        slow = asyncio.ensure_future(application.connect(CONTEXT))
        await until(lambda: len(backend.asked) == 1)
        assert application.gauges()["app_calls_active"] == 1
        for _ in range(40):
            await application.connect(CONTEXT)
        assert not slow.done()
        event.set()
        assert await slow == WELCOME
    assert application.gauges()["app_calls_active"] == 0


async def test_call_is_retried_through_a_restart_of_the_application(serve: Serve) -> None:
    backend, stats = Scripted(), Stats()
    async with serve(backend) as server, running(asking(server, calls(stats))) as application:
        await application.connect(CONTEXT)
        await server.stop()
        call = asyncio.ensure_future(application.connect(CONTEXT))
        await until(lambda: stats.app_calls_retried > 0)
        await server.start()
        assert await call == WELCOME
    assert stats.app_calls_failed == 0


async def test_unreachable_application_is_unhealthy_until_it_answers(serve: Serve) -> None:
    async with serve(Scripted()) as server, running(asking(server, once())) as application:
        await until_answered(lambda: application.connect(CONTEXT))
        assert application.health() == ""
        await server.stop()
        for _ in range(3):
            with pytest.raises(Unavailable):
                await application.connect(CONTEXT)
        assert "does not respond" in application.health()
        await server.start()
        assert await until_answered(lambda: application.connect(CONTEXT)) == WELCOME
        assert application.health() == ""


async def test_cancelled_call_does_not_affect_others(serve: Serve) -> None:
    backend, stats = Scripted(asyncio.Event()), Stats()
    async with serve(backend) as server, running(asking(server, calls(stats))) as application:
        gone = asyncio.ensure_future(application.connect(CONTEXT))
        await until(lambda: len(backend.asked) == 1)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        assert await application.connect(CONTEXT) == WELCOME
    assert stats.app_calls_failed == 0


async def test_calls_before_start_and_after_stop_are_unavailable(serve: Serve) -> None:
    backend = Scripted(asyncio.Event())
    async with serve(backend) as server:
        application = asking(server, calls())
        with pytest.raises(Unavailable, match="closed"):
            await application.connect(CONTEXT)
        async with running(application):
            call = asyncio.ensure_future(application.connect(CONTEXT))
            await until(lambda: len(backend.asked) == 1)
        with pytest.raises(Unavailable):
            await call
        with pytest.raises(Unavailable, match="closed"):
            await application.connect(CONTEXT)


async def test_invalid_unicode_fails_only_its_own_call(serve: Serve) -> None:
    async with serve(Scripted()) as server, running(asking(server, calls())) as application:
        with pytest.raises(ApplicationError, match="Unicode"):
            await application.command(CommandCall(KNOWN, Action.SUBSCRIBE, "\ud800"))
        assert await application.connect(CallContext("sid", "http://x/", {"cookie": "\udcff"})) == WELCOME
