"""Sessions that the keeper saves when their connection is lost, finds, hands out once, and ends if they cannot be kept."""

import asyncio

import pytest

from ropewalk.engine.context import EngineContext
from ropewalk.engine.disconnect_queue import DisconnectQueue
from ropewalk.engine.session_keeping import SessionKeeper
from ropewalk.engine.session_log import SessionLog
from ropewalk.model import closing as closings
from ropewalk.model.errors import LimitReached, RopewalkError, Unavailable
from ropewalk.model.limits import Limits
from ropewalk.model.refusals import Refusal
from ropewalk.model.sessions import SessionSnapshot
from tests.unit.engine.workbench import Client, Workbench, public, settle

LIMITS = Limits(ping_interval=0)


class RecordingSessionLog(SessionLog):
    def __init__(self) -> None:
        self.sids: list[str] = []

    def ended(self, sid: str) -> None:
        self.sids.append(sid)


class Bench(Workbench):
    """With a keeper of its own. `ended`: the sessions that it has ended for good."""

    def __init__(self) -> None:
        super().__init__(LIMITS)
        log = RecordingSessionLog()
        self.ended = log.sids
        context = EngineContext(LIMITS, self.rules, self.stats, self.clock)
        backend = self.backend
        self.keeper = SessionKeeper(context, backend, backend.presence, DisconnectQueue(log), self.node.sessions)

    async def lost(self) -> Client:
        """A client whose connection was just lost."""
        client = await self.subscribed("s")
        client.session.keeping = True
        return client

    async def stored(self, sid: str) -> bool:
        return await self.backend.sessions.peek(sid) is not None


def failing(error: RopewalkError) -> object:
    async def save(*args: object) -> None:
        raise error

    return save


async def test_lost_session_is_kept_with_its_subscriptions() -> None:
    async with Bench() as bench:
        client = await bench.lost()
        await bench.keeper.depart(client.session)
        snapshot = await bench.backend.sessions.peek(client.sid)
        assert snapshot is not None
        assert list(snapshot.subscriptions) == [public("s")]
        assert bench.ended == []


async def test_closed_session_ends() -> None:
    async with Bench() as bench:
        client = await bench.subscribed("s")
        await bench.keeper.depart(client.session)
        assert bench.ended == [client.sid]
        assert not await bench.stored(client.sid)


async def test_session_that_cannot_be_saved_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    for error, refusals in ((LimitReached("too large"), 1), (Unavailable("the store is down"), 0)):
        async with Bench() as bench:
            client = await bench.lost()
            monkeypatch.setattr(bench.backend.sessions, "save", failing(error))
            await bench.keeper.depart(client.session)
            assert bench.ended == [client.sid]
            assert bench.stats.refusals[Refusal.SESSION_SIZE] == refusals


async def test_session_that_is_revoked_while_it_is_saved_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Bench() as bench:
        client, save = await bench.lost(), bench.backend.sessions.save

        async def save_slowly(sid: str, snapshot: SessionSnapshot, ttl: float) -> None:
            await save(sid, snapshot, ttl)
            client.session.keeping = False

        monkeypatch.setattr(bench.backend.sessions, "save", save_slowly)
        await bench.keeper.depart(client.session)
        assert bench.ended == [client.sid]
        assert not await bench.stored(client.sid)


async def test_found_session_stays_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Bench() as bench:
        live, simple, kept = await bench.connect(), await bench.connect(extended=False), await bench.subscribed("s")
        kept.session.connection_lost()
        await settle()
        found = {client: await bench.keeper.find(client.sid) is not None for client in (live, simple, kept)}
        assert found == {live: True, simple: False, kept: True}  # the base protocol does not resume
        assert await bench.keeper.find("unknown") is None
        assert live.connection.closed is None
        assert await bench.stored(kept.sid)
        monkeypatch.setattr(bench.backend.sessions, "peek", failing(Unavailable("the store is down")))
        assert await bench.keeper.find(kept.sid) is None


async def test_session_is_taken_once() -> None:
    async with Bench() as bench:
        client = await bench.subscribed("s")
        client.session.connection_lost()
        taken = await asyncio.gather(*(bench.keeper.take(client.sid, f"successor {number}") for number in range(3)))
        assert [snapshot is not None for snapshot in taken].count(True) == 1


async def test_live_session_is_closed_for_its_reconnected_client() -> None:
    async with Bench() as bench:
        client = await bench.subscribed("s")
        assert await bench.keeper.release(client.sid) == 1
        assert client.connection.closed == (closings.TAKEN_OVER.code, closings.TAKEN_OVER.text)
        assert await bench.stored(client.sid)
        assert await bench.keeper.release(client.sid) == 0


async def test_session_that_was_put_back_can_be_taken_again_unless_it_is_revoked_or_the_store_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Bench() as bench:
        snapshot = (await bench.lost()).session.snapshot()
        await bench.keeper.put_back("returned", "successor", snapshot, revoked=False)
        assert await bench.keeper.take("returned", "next") is not None
        await bench.keeper.put_back("revoked", "successor", snapshot, revoked=True)
        monkeypatch.setattr(bench.backend.sessions, "save", failing(Unavailable("the store is down")))
        await bench.keeper.put_back("failed", "successor", snapshot, revoked=False)
        assert bench.ended == ["revoked", "failed"]
