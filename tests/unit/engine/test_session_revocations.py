"""A remote disconnect ends live, detaching, detached and opening sessions of a user, and none that open later."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from ropewalk.adapters.backends.memory import MemoryBackend
from ropewalk.core.rules import Rulebook
from ropewalk.model.application import CommandResult
from ropewalk.model.errors import Unavailable
from ropewalk.model.limits import Limits
from ropewalk.model.messages import RemoteDisconnect
from ropewalk.model.rules import StreamRules
from ropewalk.model.sessions import Accepted, ConnectRequest, Refused, SessionSnapshot
from tests.unit.adapters.backends.fake_journal import FakeJournal
from tests.unit.engine.journaled_nodes import JournaledNode
from tests.unit.engine.script import CHAT, Script
from tests.unit.engine.workbench import Client, Clock, Workbench, public, settle

PATIENT = Limits(ping_interval=0, resume_timeout=3600, disconnect_rate=0)
BO = RemoteDisconnect("bo", reconnect=False)
DISCONNECT = {"type": "disconnect", "reason": "remote", "reconnect": False}


class ByToken:
    """Accepts every client as the user of its token, once `open` is set."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.open.set()

    async def authenticate(self, request: ConnectRequest, sid: str) -> Accepted | Refused | None:
        await self.open.wait()
        return Accepted(request.token or "bo")


class SlowSessions:
    """A slow store: while `gate` is closed, its operations take effect but do not return."""

    def __init__(self, backend: MemoryBackend) -> None:
        self._sessions = backend.sessions
        self.gate = asyncio.Event()
        self.gate.set()
        self.peek, self.revoke = self._sessions.peek, self._sessions.revoke
        self.take_expired, self.take_abandoned = self._sessions.take_expired, self._sessions.take_abandoned

    async def save(self, sid: str, snapshot: SessionSnapshot, ttl: float) -> None:
        await self.gate.wait()
        await self._sessions.save(sid, snapshot, ttl)

    async def take(self, sid: str, successor: str = "") -> SessionSnapshot | None:
        taken = await self._sessions.take(sid, successor)
        await self.gate.wait()
        return taken


def slow_sessions(bench: Workbench) -> SlowSessions:
    assert isinstance(bench.backend, MemoryBackend)
    slow = SlowSessions(bench.backend)
    bench.backend.sessions = slow  # type: ignore[assignment]
    return slow


async def detach(bench: Workbench, token: str = "bo") -> Client:
    client = await bench.connect(token=token)
    await client.send(command="subscribe", identifier=public("s"))
    client.session.connection_lost()
    await settle()
    return client


async def restored(bench: Workbench, sid: str) -> bool:
    back = await bench.connect(sid, token="")
    return "restored" in back.connection.replies()[0]


async def test_detached_session_of_a_kicked_user_cannot_resume() -> None:
    async with Workbench(PATIENT, authenticators=[ByToken()]) as bench:
        client, other = await detach(bench), await detach(bench, "eve")
        assert await bench.node.broker.disconnect(BO) == 1
        assert not await restored(bench, client.sid)
        assert await restored(bench, other.sid)
        assert bench.stats.remote_disconnects == 1


async def test_session_being_saved_is_not_kept_after_a_kick() -> None:
    async with Workbench(PATIENT, authenticators=[ByToken()]) as bench:
        slow = slow_sessions(bench)
        client = await bench.connect(token="bo")
        slow.gate.clear()
        client.session.connection_lost()
        await settle()
        assert await bench.node.broker.disconnect(BO) == 1
        slow.gate.set()
        await settle()
        assert not await restored(bench, client.sid)


async def test_kick_ends_a_client_being_authenticated_but_not_a_later_one() -> None:
    authenticator = ByToken()
    async with Workbench(PATIENT, authenticators=[authenticator]) as bench:
        authenticator.open.clear()
        client, other = bench.open_connection(token="bo"), bench.open_connection(token="eve")
        await settle()
        assert await bench.node.broker.disconnect(BO) == 0
        later = bench.open_connection(token="bo")
        authenticator.open.set()
        await settle()
        assert client.connection.replies() == [DISCONNECT]
        assert client.connection.closed == (1000, "Closed remotely")
        assert (other.seen(), later.seen()) == (["welcome"], ["welcome"])
        assert len(bench.node.sessions.revocations) == 0


async def test_kick_ends_a_session_being_resumed() -> None:
    authenticator = ByToken()
    async with Workbench(PATIENT, authenticators=[authenticator]) as bench:
        slow = slow_sessions(bench)
        client = await detach(bench)
        slow.gate.clear()
        back = bench.open_connection(client.sid)
        await settle()  # it is taken from the store and not live yet
        await bench.node.broker.disconnect(BO)
        slow.gate.set()
        await settle()
        assert back.connection.replies() == [DISCONNECT]
        assert not await restored(bench, client.sid)


async def test_kick_ends_a_session_while_its_token_is_verified() -> None:
    authenticator = ByToken()
    async with Workbench(PATIENT, authenticators=[authenticator]) as bench:
        client = await detach(bench)
        authenticator.open.clear()
        back = bench.open_connection(client.sid, token="bo")
        await settle()
        assert await bench.node.broker.disconnect(BO) == 1
        authenticator.open.set()
        await settle()
        assert back.connection.replies() == [DISCONNECT]


# --- disconnect calls ------------------------------------------------------------------------------------------------


async def kicked_away(bench: Workbench, client: Client, script: Script) -> None:
    client.session.connection_lost()
    await settle()
    await bench.node.broker.disconnect(BO)


async def kicked_live(bench: Workbench, client: Client, script: Script) -> None:
    await bench.node.broker.disconnect(BO)


async def kicked_during_an_action(bench: Workbench, client: Client, script: Script) -> None:
    script.held = asyncio.Event()
    await client.send(command="message", identifier=CHAT, data="{}")
    client.session.connection_lost()
    await settle()
    await bench.node.broker.disconnect(BO)
    script.held.set()


Kick = Callable[[Workbench, Client, Script], Awaitable[None]]


@pytest.mark.parametrize("kick", [kicked_live, kicked_away, kicked_during_an_action])
async def test_kick_calls_disconnect_once_and_holds_after_a_crash(kick: Kick) -> None:
    script = Script()
    async with JournaledNode(script=script) as journaled:
        client = await journaled.bench.connect()
        await client.send(command="subscribe", identifier=CHAT)
        await kick(journaled.bench, client, script)
        crashed_at_once = journaled.crash()
        await settle()
        assert [each.context.sid for each in script.disconnect_calls] == [client.sid]
        after = journaled.crash()
        for life in (crashed_at_once, after):
            assert await life.backend.sessions.take(client.sid) is None
        await journaled.bench.node.upkeep()
        await settle()
    async with after:
        await after.bench.node.upkeep()
        await settle()
    assert [each.context.sid for each in script.disconnect_calls] == [client.sid]
    assert [list(each.subscriptions) for each in script.disconnect_calls] == [[CHAT]]


async def test_client_kicked_during_its_connect_call_gets_a_disconnect_call() -> None:
    script = Script()
    async with Workbench(PATIENT, authenticators=(), application=script) as bench:
        script.held = asyncio.Event()
        client = bench.open_connection()
        await settle()
        await bench.node.broker.disconnect(BO)
        script.held.set()
        await settle()
        assert client.connection.replies() == [DISCONNECT]
        assert script.events == ["start", "connect", "disconnect"]


async def test_disconnect_result_applies_after_the_connection_is_lost() -> None:
    script = Script(CommandResult(streams=("s",)), CommandResult(disconnect=True, state={"banned": "yes"}))
    async with JournaledNode(script=script) as journaled:
        client = await journaled.bench.connect()
        await client.send(command="subscribe", identifier=CHAT)
        script.held = asyncio.Event()
        await client.send(command="message", identifier=CHAT, data="{}")
        await journaled.bench.node.drain(0)  # as at SIGTERM
        script.held.set()
        await settle()
        after = journaled.crash()
        assert await after.backend.sessions.take(client.sid) is None
    async with after:
        await after.bench.node.upkeep()
        await settle()
    assert [(each.context.sid, each.context.state) for each in script.disconnect_calls] == [(client.sid, {"banned": "yes"})]


# --- the journal -----------------------------------------------------------------------------------------------------


async def test_kick_is_acknowledged_once_it_is_durable() -> None:
    journal, clock = FakeJournal(hold=True), Clock()
    backend = MemoryBackend(Rulebook(StreamRules()), clock, journal=journal)
    async with Workbench(
        PATIENT, authenticators=[ByToken()], backend=backend, session_log=JournaledNode.session_log(journal, clock), clock=clock
    ) as bench:
        client = await detach(bench)
        ordering = asyncio.create_task(bench.node.broker.disconnect(BO))
        await settle()
        assert not ordering.done()
        await journal.release()
        assert await ordering == 1
        assert journal.rows[-1].key == "bo"
        again = asyncio.create_task(bench.node.broker.disconnect(BO))
        await journal.refuse()
        with pytest.raises(Unavailable):
            await again
        assert not await restored(bench, client.sid)
