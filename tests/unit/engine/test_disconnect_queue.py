"""Disconnect calls: one for each session known to the application, also across crashes."""

import asyncio
import itertools

import msgspec
import pytest

from ropewalk.core.stats import Stats
from ropewalk.engine.disconnect_queue import ApplicationDisconnectQueue
from ropewalk.engine.session_log import SessionLog
from ropewalk.model import closing as closings
from ropewalk.model.application import CommandResult, DisconnectCall
from ropewalk.model.errors import Unavailable
from ropewalk.model.journal import Row, RowKind
from ropewalk.model.limits import Limits
from ropewalk.model.session_log import SessionCheckpoint
from ropewalk.model.sessions import Accepted, AppSide, ConnectRequest, Refused, SessionSnapshot
from ropewalk.testing.simulation.steps import run
from tests.unit.engine.journaled_nodes import PATIENT, JournaledNode
from tests.unit.engine.script import CHAT, Script
from tests.unit.engine.workbench import Client, Workbench, settle


async def chatting(journaled: JournaledNode, extended: bool = True) -> Client:
    client = await journaled.bench.connect(extended=extended)
    await client.send(command="subscribe", identifier=CHAT)
    return client


async def run_upkeep(journaled: JournaledNode) -> None:
    await journaled.bench.node.upkeep()
    await settle()


def disconnected(script: Script) -> list[str]:
    return [disconnect_call.context.sid for disconnect_call in script.disconnect_calls]


# --- over a crash ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("extended", [True, False])
async def test_late_action_result_neither_revives_a_session_nor_repeats_the_disconnect_call(extended: bool) -> None:
    script = Script(CommandResult(streams=("s",)), CommandResult(state={"late": "1"}, own={"room": "2"}, streams=("t",)))
    async with JournaledNode(script=script) as journaled:
        client = await chatting(journaled, extended)
        script.held = asyncio.Event()
        await client.send(command="message", identifier=CHAT, data="{}")
        await journaled.bench.node.drain(0)  # as at SIGTERM
        script.held.set()
        await settle()
        after = journaled.crash()
    called_before = disconnected(script)
    assert called_before == ([] if extended else [client.sid])
    async with after:
        await run_upkeep(after)
        assert disconnected(script) == called_before
        after.clock.now += PATIENT.sessions_ttl
        await run_upkeep(after)
        assert disconnected(script) == [client.sid]
        disconnect_call = script.disconnect_calls[0]
        assert (disconnect_call.context.state, disconnect_call.subscriptions) == ({"late": "1"}, {CHAT: {"room": "2"}})


async def test_disconnect_is_called_after_a_crash_for_a_base_client_that_left_before_it() -> None:
    script = Script()
    async with JournaledNode(script=script) as journaled:
        client = await chatting(journaled, extended=False)
        script.held = asyncio.Event()  # the application is slow
        client.session.connection_lost()
        await settle()
        after = journaled.crash()
        script.held.set()
    script.disconnect_calls.clear()
    script.held = None
    async with after:
        await run_upkeep(after)
        assert disconnected(script) == [client.sid]
        assert list(script.disconnect_calls[0].subscriptions) == [CHAT]
        last = after.crash()
    async with last:
        await run_upkeep(last)
    assert disconnected(script) == [client.sid]


async def test_disconnect_call_before_a_crash_is_not_repeated() -> None:
    script = Script()
    async with JournaledNode(script=script) as journaled:
        base, away = await chatting(journaled, extended=False), await chatting(journaled)
        base.session.connection_lost()
        away.session.connection_lost()
        await settle()
        journaled.clock.now += PATIENT.sessions_ttl
        await run_upkeep(journaled)
        assert sorted(disconnected(script)) == sorted([base.sid, away.sid])
        after = journaled.crash()
    async with after:
        await run_upkeep(after)
    assert len(script.disconnect_calls) == 2


async def test_session_that_expired_before_a_crash_gets_its_disconnect_call_after_it() -> None:
    script = Script()
    async with JournaledNode(script=script) as journaled:
        away = await chatting(journaled)
        away.session.connection_lost()
        await settle()
        journaled.clock.now += PATIENT.sessions_ttl
        after = journaled.crash()  # before it was noticed
    script.disconnect_calls.clear()
    async with after:
        await run_upkeep(after)
    assert disconnected(script) == [away.sid]


async def test_disconnect_call_that_failed_before_shutdown_is_made_after_the_next_start() -> None:
    script = Script()
    async with JournaledNode(script=script) as journaled:
        client = await chatting(journaled, extended=False)
        script.refused_disconnect_calls.extend([Unavailable("down")] * 20)
        client.session.connection_lost()
    assert disconnected(script) == []
    assert journaled.bench.stats.app_disconnects_dropped == 0
    script.refused_disconnect_calls.clear()
    after = journaled.crash()
    async with after:
        await run_upkeep(after)
    assert disconnected(script) == [client.sid]


async def test_row_of_an_older_version_after_the_end_does_not_revive_a_session() -> None:
    script = Script()
    async with JournaledNode(script=script) as journaled:
        client = await chatting(journaled)
        checkpoint = SessionCheckpoint(resumable=True, snapshot=client.session.snapshot())
        client.session.end(closings.REMOTE)
        detail = msgspec.json.encode(checkpoint).decode()
        journaled.journal.write_nowait([Row(RowKind.ALIVE, client.sid, journaled.clock.now, sid=client.sid, detail=detail)])
        assert await journaled.crash().backend.sessions.take(client.sid) is None


# --- while it runs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("token", ["", "expired", "eve's"])
async def test_refused_resume_does_not_lose_the_disconnect_call(token: str) -> None:
    class Tokens:
        async def authenticate(self, request: ConnectRequest, sid: str) -> Accepted | Refused | None:
            if request.token == "bo's":
                return Accepted("bo", bench.clock() + 60)
            return Accepted("eve") if request.token == "eve's" else Refused("token_expired")

    script = Script()
    limits = Limits(ping_interval=0, resume_timeout=3600, sessions_ttl=300, disconnect_rate=0)
    async with Workbench(limits, authenticators=[Tokens()], application=script) as bench:
        client = await bench.connect(token="bo's")
        await client.send(command="subscribe", identifier=CHAT)
        client.session.connection_lost()
        await settle()
        bench.clock.now += 61
        await bench.connect(client.sid, token=token)
        bench.clock.now += 300
        await bench.node.upkeep()
        await settle()
        assert disconnected(script) == [client.sid]


def test_calls_that_failed_together_are_retried_at_different_times() -> None:
    class Down(Script):
        def __init__(self) -> None:
            super().__init__()
            self.tried: dict[str, list[float]] = {}

        async def disconnect(self, disconnect_call: DisconnectCall) -> None:
            self.tried.setdefault(disconnect_call.context.sid, []).append(asyncio.get_running_loop().time())
            raise Unavailable("connection refused")

    async def outage(application: Down) -> None:
        randoms = iter([0.0, 1.0] * 100)
        queue = ApplicationDisconnectQueue(application, Limits(), Stats(), SessionLog(), lambda: next(randoms))
        queue.start()
        for sid in ("a", "b"):
            queue.put(sid, SessionSnapshot("bo", {}, app=AppSide("/", {}, {}, known=True)))
        await asyncio.sleep(100)
        await queue.finish()

    application = Down()
    run(outage(application))  # in virtual time
    first, second = application.tried["a"], application.tried["b"]
    assert first[:4] == [0.0, 0.25, 0.75, 1.75]
    assert second[:4] == [0.0, 0.5, 1.5, 3.5]
    assert max(later - earlier for earlier, later in itertools.pairwise(second)) == 30.0


async def test_disconnect_is_called_for_a_client_accepted_during_shutdown() -> None:
    script = Script()
    bench = Workbench(PATIENT, authenticators=(), application=script)
    await bench.node.start()
    script.held = asyncio.Event()
    bench.open_connection()
    await settle()
    stopping = asyncio.create_task(bench.node.stop())
    await settle()
    script.held.set()
    await stopping
    assert script.events == ["start", "connect", "disconnect", "stop"]


async def test_disconnect_is_called_after_a_crash_for_a_client_that_left_during_connect() -> None:
    script = Script()
    async with JournaledNode(script=script) as journaled:
        script.held = asyncio.Event()
        client = journaled.bench.open_connection()
        await settle()
        client.session.connection_lost()
        script.held.set()
        script.refused_disconnect_calls.extend([Unavailable("down")] * 20)
        await settle()
        after = journaled.crash()
    script.refused_disconnect_calls.clear()
    async with after:
        await run_upkeep(after)
    assert disconnected(script) == [client.sid]


async def test_disconnect_is_called_at_once_for_a_session_too_large_to_store() -> None:
    script = Script(
        CommandResult(streams=("s",), own={"much": "x" * 60_000}), CommandResult(streams=("s",), own={"much": "x" * 60_000})
    )
    async with JournaledNode(script=script, max_session_size=100_000) as journaled:
        client = await chatting(journaled)
        await client.send(command="subscribe", identifier='{"channel":"Other"}')
        client.session.connection_lost()
        await settle()
        assert disconnected(script) == [client.sid]
        assert journaled.bench.stats.refusals["session_size"] == 1
        assert journaled.kinds(client)[-1] == "ended"
