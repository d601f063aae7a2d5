"""A remote disconnect ends whoever it names: live, on the way out, away, or on the way in. And nobody who comes after it."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from ropewalk.adapters.backends.memory import MemoryBackend
from ropewalk.core.rules import Rulebook
from ropewalk.engine.session_table import Revocations
from ropewalk.model.application import CommandResult
from ropewalk.model.errors import Unavailable
from ropewalk.model.limits import Limits
from ropewalk.model.messages import RemoteDisconnect
from ropewalk.model.rules import StreamRules
from ropewalk.model.sessions import Accepted, ConnectRequest, Refused, SessionSnapshot
from tests.unit.adapters.backends.fake_journal import FakeJournal
from tests.unit.engine.journaled_nodes import Chronicle
from tests.unit.engine.script import CHAT, Script
from tests.unit.engine.workbench import Client, Clock, Workbench, public, settle

PATIENT = Limits(ping_interval=0, resume_timeout=3600, disconnect_rate=0)
BO = RemoteDisconnect("bo", reconnect=False)
GOODBYE = {"type": "disconnect", "reason": "remote", "reconnect": False}


class Named:
    """Everybody is who the token says, as soon as `open` is set."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.open.set()

    async def authenticate(self, request: ConnectRequest, sid: str) -> Accepted | Refused | None:
        await self.open.wait()
        return Accepted(request.token or "bo")


class SlowSessions:
    """A store that is far away: while `gate` is closed, whatever it is asked to do is done, but nobody hears of it."""

    def __init__(self, backend: MemoryBackend) -> None:
        self._sessions = backend.sessions
        self.gate = asyncio.Event()
        self.gate.set()
        self.peek, self.revoke = self._sessions.peek, self._sessions.revoke
        self.expired, self.abandoned = self._sessions.expired, self._sessions.abandoned

    async def save(self, sid: str, snapshot: SessionSnapshot, ttl: float) -> None:
        await self.gate.wait()
        await self._sessions.save(sid, snapshot, ttl)

    async def take(self, sid: str, successor: str = "") -> SessionSnapshot | None:
        taken = await self._sessions.take(sid, successor)
        await self.gate.wait()
        return taken


def distant(bench: Workbench) -> SlowSessions:
    assert isinstance(bench.backend, MemoryBackend)
    slow = SlowSessions(bench.backend)
    bench.backend.sessions = slow  # type: ignore[assignment]
    return slow


async def away(bench: Workbench, token: str = "bo") -> Client:
    client = await bench.connect(token=token)
    await client.send(command="subscribe", identifier=public("s"))
    client.session.lost()
    await settle()
    return client


async def restored(bench: Workbench, sid: str) -> bool:
    back = await bench.connect(sid, token="")
    return "restored" in back.connection.replies()[0]


async def test_a_session_that_is_away_cannot_be_resumed_after_its_user_was_kicked() -> None:
    async with Workbench(PATIENT, authenticators=[Named()]) as bench:
        client, other = await away(bench), await away(bench, "eve")
        assert await bench.node.broker.disconnect(BO) == 1
        assert not await restored(bench, client.sid)
        assert await restored(bench, other.sid)
        assert bench.stats.remote_disconnects == 1


async def test_a_session_on_its_way_out_is_not_kept() -> None:
    async with Workbench(PATIENT, authenticators=[Named()]) as bench:
        slow = distant(bench)
        client = await bench.connect(token="bo")
        slow.gate.clear()
        client.session.lost()
        await settle()
        assert await bench.node.broker.disconnect(BO) == 1
        slow.gate.set()
        await settle()
        assert not await restored(bench, client.sid)


async def test_a_client_on_its_way_in_is_told_to_go_and_one_that_comes_later_is_not() -> None:
    named = Named()
    async with Workbench(PATIENT, authenticators=[named]) as bench:
        named.open.clear()
        client, other = bench.open_connection(token="bo"), bench.open_connection(token="eve")
        await settle()
        assert await bench.node.broker.disconnect(BO) == 0
        later = bench.open_connection(token="bo")
        named.open.set()
        await settle()
        assert client.connection.replies() == [GOODBYE]
        assert client.connection.closed == (1000, "Closed remotely")
        assert (other.seen(), later.seen()) == (["welcome"], ["welcome"])
        assert len(bench.node.sessions.revocations) == 0


async def test_a_session_that_is_just_being_resumed_is_ended() -> None:
    named = Named()
    async with Workbench(PATIENT, authenticators=[named]) as bench:
        slow = distant(bench)
        client = await away(bench)
        slow.gate.clear()
        back = bench.open_connection(client.sid)
        await settle()  # it is taken from the store, and not live yet
        await bench.node.broker.disconnect(BO)
        slow.gate.set()
        await settle()
        assert back.connection.replies() == [GOODBYE]
        assert not await restored(bench, client.sid)


async def test_a_session_that_is_to_be_resumed_with_a_token_is_ended_while_that_is_verified() -> None:
    named = Named()
    async with Workbench(PATIENT, authenticators=[named]) as bench:
        client = await away(bench)
        named.open.clear()
        back = bench.open_connection(client.sid, token="bo")
        await settle()
        assert await bench.node.broker.disconnect(BO) == 1
        named.open.set()
        await settle()
        assert back.connection.replies() == [GOODBYE]


# --- the application hears of each, once -----------------------------------------------------------------------------


async def kicked_away(bench: Workbench, client: Client, script: Script) -> None:
    client.session.lost()
    await settle()
    await bench.node.broker.disconnect(BO)


async def kicked_live(bench: Workbench, client: Client, script: Script) -> None:
    await bench.node.broker.disconnect(BO)


async def kicked_during_an_action(bench: Workbench, client: Client, script: Script) -> None:
    script.held = asyncio.Event()
    await client.send(command="message", identifier=CHAT, data="{}")
    client.session.lost()
    await settle()
    await bench.node.broker.disconnect(BO)
    script.held.set()


Kick = Callable[[Workbench, Client, Script], Awaitable[None]]


@pytest.mark.parametrize("kick", [kicked_live, kicked_away, kicked_during_an_action])
async def test_a_kick_is_told_once_and_holds_after_a_crash(kick: Kick) -> None:
    script = Script()
    async with Chronicle(script=script) as story:
        client = await story.bench.connect()
        await client.send(command="subscribe", identifier=CHAT)
        await kick(story.bench, client, script)
        crashed_before_anything_else = story.crash()
        await settle()
        assert [each.context.sid for each in script.disconnect_calls] == [client.sid]
        after = story.crash()
        for life in (crashed_before_anything_else, after):
            assert await life.backend.sessions.take(client.sid) is None
        await story.bench.node.upkeep()
        await settle()
    async with after:
        await after.bench.node.upkeep()
        await settle()
    assert [each.context.sid for each in script.disconnect_calls] == [client.sid]
    assert [list(each.subscriptions) for each in script.disconnect_calls] == [[CHAT]]


async def test_one_that_the_application_was_letting_in_is_told_to_be_gone() -> None:
    script = Script()
    async with Workbench(PATIENT, authenticators=(), application=script) as bench:
        script.held = asyncio.Event()
        client = bench.open_connection()
        await settle()
        await bench.node.broker.disconnect(BO)
        script.held.set()
        await settle()
        assert client.connection.replies() == [GOODBYE]
        assert script.told == ["start", "connect", "disconnect"]


async def test_an_answer_that_bans_a_client_is_heeded_though_its_connection_is_gone() -> None:
    script = Script(CommandResult(streams=("s",)), CommandResult(disconnect=True, state={"banned": "yes"}))
    async with Chronicle(script=script) as story:
        client = await story.bench.connect()
        await client.send(command="subscribe", identifier=CHAT)
        script.held = asyncio.Event()
        await client.send(command="message", identifier=CHAT, data="{}")
        await story.bench.node.drain(0)  # as at SIGTERM
        script.held.set()
        await settle()
        after = story.crash()
        assert await after.backend.sessions.take(client.sid) is None
    async with after:
        await after.bench.node.upkeep()
        await settle()
    assert [(each.context.sid, each.context.state) for each in script.disconnect_calls] == [(client.sid, {"banned": "yes"})]


# --- the journal -----------------------------------------------------------------------------------------------------


async def test_an_order_is_answered_once_it_outlives_a_crash() -> None:
    journal, clock = FakeJournal(hold=True), Clock()
    backend = MemoryBackend(Rulebook(StreamRules()), clock, journal=journal)
    async with Workbench(
        PATIENT, authenticators=[Named()], backend=backend, session_log=Chronicle.session_log(journal, clock), clock=clock
    ) as bench:
        client = await away(bench)
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


# --- the memory of orders ----------------------------------------------------------------------------------------------


def test_orders_are_remembered_for_those_who_began_before_them_and_no_longer() -> None:
    orders = Revocations()
    orders.add(BO)
    assert len(orders) == 0  # nobody is opening
    orders.opening("early")
    orders.add(BO)
    orders.opening("middle")
    orders.add(RemoteDisconnect("eve"))
    orders.opening("late")
    assert orders.order_for("early", "bo") == BO
    assert [orders.order_for(sid, "bo") for sid in ("middle", "late", "unknown")] == [None] * 3
    assert [orders.order_for(sid, "eve") is not None for sid in ("early", "middle", "late")] == [True, True, False]
    orders.opened("early")
    assert len(orders) == 1
    orders.add(RemoteDisconnect("eve", reconnect=False))
    assert orders.order_for("late", "eve") == RemoteDisconnect("eve", reconnect=False)
    orders.opened("late")
    orders.opened("middle")
    assert len(orders) == 0
