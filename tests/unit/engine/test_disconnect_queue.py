"""The application hears of the end of each session it knew, once: whatever happened to the session, and over crashes."""

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
from ropewalk.testing.simulation.loop import run
from tests.unit.engine.journaled_nodes import PATIENT, Chronicle
from tests.unit.engine.script import CHAT, Script
from tests.unit.engine.workbench import Client, Workbench, settle


async def chatting(story: Chronicle, extended: bool = True) -> Client:
    client = await story.bench.connect(extended=extended)
    await client.send(command="subscribe", identifier=CHAT)
    return client


async def caught_up(story: Chronicle) -> None:
    await story.bench.node.upkeep()
    await settle()


def gone(script: Script) -> list[str]:
    return [disconnect_call.context.sid for disconnect_call in script.disconnect_calls]


# --- over a crash ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("extended", [True, False])
async def test_what_an_action_changes_after_the_end_neither_revives_a_session_nor_tells_of_it_twice(extended: bool) -> None:
    script = Script(CommandResult(streams=("s",)), CommandResult(state={"late": "1"}, own={"room": "2"}, streams=("t",)))
    async with Chronicle(script=script) as story:
        client = await chatting(story, extended)
        script.held = asyncio.Event()
        await client.send(command="message", identifier=CHAT, data="{}")
        await story.bench.node.drain(0)  # as at SIGTERM
        script.held.set()
        await settle()
        after = story.crash()
    told_before = gone(script)
    assert told_before == ([] if extended else [client.sid])
    async with after:
        await caught_up(after)
        assert gone(script) == told_before
        after.clock.now += PATIENT.sessions_ttl
        await caught_up(after)
        assert gone(script) == [client.sid]
        disconnect_call = script.disconnect_calls[0]
        assert (disconnect_call.context.state, disconnect_call.subscriptions) == ({"late": "1"}, {CHAT: {"room": "2"}})


async def test_a_base_client_that_left_before_a_crash_is_told_of_after_it() -> None:
    script = Script()
    async with Chronicle(script=script) as story:
        client = await chatting(story, extended=False)
        script.held = asyncio.Event()  # the application takes its time
        client.session.lost()
        await settle()
        after = story.crash()
        script.held.set()
    script.disconnect_calls.clear()
    script.held = None
    async with after:
        await caught_up(after)
        assert gone(script) == [client.sid]
        assert list(script.disconnect_calls[0].subscriptions) == [CHAT]
        last = after.crash()
    async with last:
        await caught_up(last)
    assert gone(script) == [client.sid]


async def test_what_was_told_before_a_crash_is_not_told_again() -> None:
    script = Script()
    async with Chronicle(script=script) as story:
        base, away = await chatting(story, extended=False), await chatting(story)
        base.session.lost()
        away.session.lost()
        await settle()
        story.clock.now += PATIENT.sessions_ttl
        await caught_up(story)
        assert sorted(gone(script)) == sorted([base.sid, away.sid])
        after = story.crash()
    async with after:
        await caught_up(after)
    assert len(script.disconnect_calls) == 2


async def test_a_session_whose_time_was_over_but_which_was_not_told_of_is_told_of_after_the_crash() -> None:
    script = Script()
    async with Chronicle(script=script) as story:
        away = await chatting(story)
        away.session.lost()
        await settle()
        story.clock.now += PATIENT.sessions_ttl
        after = story.crash()  # before anybody noticed
    script.disconnect_calls.clear()
    async with after:
        await caught_up(after)
    assert gone(script) == [away.sid]


async def test_what_an_application_did_not_hear_before_the_end_it_hears_after_the_next_start() -> None:
    script = Script()
    async with Chronicle(script=script) as story:
        client = await chatting(story, extended=False)
        script.refused_disconnect_calls.extend([Unavailable("down")] * 20)
        client.session.lost()
    assert gone(script) == []
    assert story.bench.stats.app_disconnects_dropped == 0
    script.refused_disconnect_calls.clear()
    after = story.crash()
    async with after:
        await caught_up(after)
    assert gone(script) == [client.sid]


async def test_a_row_that_an_older_version_wrote_after_the_end_revives_nobody() -> None:
    script = Script()
    async with Chronicle(script=script) as story:
        client = await chatting(story)
        whole = SessionCheckpoint(resumable=True, snapshot=client.session.snapshot())
        client.session.end(closings.REMOTE)
        detail = msgspec.json.encode(whole).decode()
        story.journal.note([Row(RowKind.ALIVE, client.sid, story.clock.now, sid=client.sid, detail=detail)])
        assert await story.crash().backend.sessions.take(client.sid) is None


# --- while it runs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shown", ["", "bo's, and it is over", "eve's"])
async def test_a_return_that_is_not_let_in_does_not_lose_the_disconnect_call(shown: str) -> None:
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
        client.session.lost()
        await settle()
        bench.clock.now += 61
        await bench.connect(client.sid, token=shown)
        bench.clock.now += 300
        await bench.node.upkeep()
        await settle()
        assert gone(script) == [client.sid]


def test_calls_that_failed_together_are_not_repeated_together() -> None:
    class Down(Script):
        def __init__(self) -> None:
            super().__init__()
            self.tried: dict[str, list[float]] = {}

        async def disconnect(self, disconnect_call: DisconnectCall) -> None:
            self.tried.setdefault(disconnect_call.context.sid, []).append(asyncio.get_running_loop().time())
            raise Unavailable("nobody there")

    async def outage(application: Down) -> None:
        chances = iter([0.0, 1.0] * 100)
        queue = ApplicationDisconnectQueue(application, Limits(), Stats(), SessionLog(), lambda: next(chances))
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


async def test_a_client_that_is_let_in_while_the_server_stops_is_told_of() -> None:
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
    assert script.told == ["start", "connect", "disconnect", "stop"]


async def test_a_client_that_left_while_it_was_let_in_is_told_of_after_a_crash() -> None:
    script = Script()
    async with Chronicle(script=script) as story:
        script.held = asyncio.Event()
        client = story.bench.open_connection()
        await settle()
        client.session.lost()
        script.held.set()
        script.refused_disconnect_calls.extend([Unavailable("down")] * 20)
        await settle()
        after = story.crash()
    script.refused_disconnect_calls.clear()
    async with after:
        await caught_up(after)
    assert gone(script) == [client.sid]


async def test_a_session_too_large_to_be_kept_is_told_of_at_once() -> None:
    script = Script(
        CommandResult(streams=("s",), own={"much": "x" * 60_000}), CommandResult(streams=("s",), own={"much": "x" * 60_000})
    )
    async with Chronicle(script=script, max_session_size=100_000) as story:
        client = await chatting(story)
        await client.send(command="subscribe", identifier='{"channel":"Other"}')
        client.session.lost()
        await settle()
        assert gone(script) == [client.sid]
        assert story.bench.stats.refusals["session_size"] == 1
        assert story.kinds(client)[-1] == "ended"
