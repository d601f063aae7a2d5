"""The Redis backend on one real server: the complete suite of shared backends, and what a late or cut connection does."""

import asyncio
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
import uvloop
from redis.asyncio.connection import AbstractConnection

from ropewalk.adapters.backends.redis import SWEPT_AT_ONCE, RedisBackend, RedisOptions, subscriber, topology
from ropewalk.adapters.backends.redis.links import RedisLink, RedisLinks
from ropewalk.adapters.backends.redis.sessions import EXPIRED_AT_ONCE
from ropewalk.connections.redis import RedisAddress, connection_to, open_redis
from ropewalk.core.rules import Rulebook
from ropewalk.model.errors import Unanswered, Unavailable
from ropewalk.model.messages import Publication
from ropewalk.model.presence import Member
from ropewalk.model.rules import StreamRules
from ropewalk.model.sessions import SessionSnapshot, SessionTaken, SessionWrite
from ropewalk.ports import Backend, NodeName
from ropewalk.testing.backend import RecordQueueConformance, SharedBackendConformance
from ropewalk.testing.backend_rig import BackendSetup, StoreFault
from ropewalk.testing.clock import ManualClock
from tests.services import RedisServer, free_port, redis_server

POLL_SECONDS = 0.005

pytestmark = pytest.mark.tier("standard")

_numbers = count()


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with redis_server("--appendonly", "no") as server:
        yield server


class DisturbedLinks(RedisLinks):
    """Links with a fault. If the store is unavailable they connect to a port without a listener."""

    def __init__(self, working: RedisLinks) -> None:
        super().__init__(self._connection)
        self._working = working
        self.fault = StoreFault.NONE

    async def _connection(self) -> AbstractConnection:
        if self.fault is StoreFault.UNAVAILABLE:
            return await connection_to(open_redis(RedisAddress(f"redis://127.0.0.1:{free_port()}"), 1.0))
        return await self._working._connect()

    async def open(self) -> RedisLink:
        return DisturbedLink((await super().open())._connection, self)

    async def close(self) -> None:
        await super().close()
        await self._working.close()


class DisturbedLink(RedisLink):
    def __init__(self, connection: AbstractConnection, links: DisturbedLinks) -> None:
        super().__init__(connection)
        self._links = links

    @property
    def usable(self) -> bool:
        return super().usable and self._links.fault is not StoreFault.UNAVAILABLE

    async def ask(self, *command: Any) -> Any:
        while self._links.fault is StoreFault.SLOW:
            await asyncio.sleep(POLL_SECONDS)
        answer = await super().ask(*command)
        if self._links.fault is StoreFault.UNANSWERED and command[0] == "EVALSHA":  # a script that is loaded has done nothing
            await self.close()
            raise Unanswered("the connection was cut")
        return answer


class RedisSuite(RecordQueueConformance, SharedBackendConformance):
    """Every case has a store of its own, by the prefix of its keys."""

    address: RedisAddress

    @pytest.fixture(autouse=True)
    def _long_timeouts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A busy machine may take longer than the server's users would wait."""
        monkeypatch.setattr(subscriber, "LISTEN_SECONDS", 60.0)
        monkeypatch.setattr(topology, "REPLY_SECONDS", 60.0)

    def make_two(self, setup: BackendSetup) -> tuple[Backend, Backend]:
        prefix = f"rw{next(_numbers)}:"
        first, second = (
            RedisBackend(
                Rulebook(setup.default, setup.rules),
                self.address,
                NodeName(node, node),
                setup.limits,
                RedisOptions(prefix),
                setup.clock,
            )
            for node in ("one", "two")
        )
        return first, second

    def disturb(self, backend: Backend, fault: StoreFault) -> None:
        assert isinstance(backend, RedisBackend)
        for shard in backend.store.shards:
            if not isinstance(shard.links, DisturbedLinks):
                shard.links = DisturbedLinks(shard.links)
            shard.links.fault = fault


class TestRedisBackend(RedisSuite):
    @pytest.fixture(autouse=True)
    def _server(self, redis: RedisServer) -> None:
        self.address = RedisAddress(redis.url)


async def test_one_sweep_removes_all_streams_that_are_due(redis: RedisServer) -> None:
    clock = ManualClock()
    backend = RedisBackend(
        Rulebook(StreamRules()), RedisAddress(redis.url), NodeName("node", "node"), options=RedisOptions("many:"), clock=clock
    )
    await backend.start()
    await backend.streams.append([Publication(f"stream/{number}", b"1") for number in range(2 * SWEPT_AT_ONCE + 1)])
    clock.advance(1_000_000)
    await backend.sweep()
    assert backend.gauges()["streams"] == 0
    await backend.stop()


async def test_one_sweep_ends_all_sessions_and_members_of_a_dead_node(redis: RedisServer) -> None:
    clock, total = ManualClock(), 2 * SWEPT_AT_ONCE + 1
    rules, address, options = Rulebook(StreamRules()), RedisAddress(redis.url), RedisOptions("dead:")
    dead, alive = (
        RedisBackend(rules, address, NodeName(node, node), options=options, clock=clock) for node in ("dead", "alive")
    )
    for backend in (dead, alive):
        await backend.start()
        await backend.leases.renew(6.0, ())
    sids = [f"sid {number}" for number in range(total)]
    writes = [SessionWrite(sid, SessionSnapshot("", {}), 1, 60.0, began=clock.now) for sid in sids]
    assert await dead.leases.write(writes) == []
    for sid in sids:
        await dead.presence.join("a", sid, Member(sid))
    clock.advance(7)
    await alive.sweep()
    assert alive.gauges()["sessions_kept"] == total
    clock.advance(16)
    left = await expired_members(alive)
    assert (len(left), alive.gauges()["presence_members"]) == (total, total)
    clock.advance(60)
    await alive.sweep()
    assert (alive.gauges()["sessions_kept"], alive.gauges()["presence_members"]) == (0, 0)
    for backend in (dead, alive):
        await backend.stop()


async def expired_members(backend: Backend) -> list[str]:
    found: list[str] = []
    while events := await backend.presence.expire():
        found += [event.member.id for event in events]
    return found


async def test_expired_sids_without_an_event_do_not_delay_the_others(redis: RedisServer) -> None:
    clock = ManualClock()
    rules, address, options = Rulebook(StreamRules()), RedisAddress(redis.url), RedisOptions("same:")
    backend = RedisBackend(rules, address, NodeName("node", "node"), options=options, clock=clock)
    await backend.start()
    for number in range(2 * EXPIRED_AT_ONCE):
        await backend.presence.join("a", f"sid {number}", Member("bo"))
        await backend.presence.detach(f"sid {number}", 1.0)
    await backend.presence.join("a", "connected", Member("bo"))
    await backend.presence.join("a", "late", Member("cy"))
    await backend.presence.detach("late", 2.0)
    clock.advance(3)
    assert [event.member.id for event in await backend.presence.expire()] == ["cy"]
    await backend.stop()


async def test_late_write_does_not_restore_a_revoked_session(redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a delayed connection: a write that was sent before the revoke arrives after it."""
    clock = ManualClock()
    rules, address, options = Rulebook(StreamRules()), RedisAddress(redis.url), RedisOptions("late:")
    old, new = (RedisBackend(rules, address, NodeName(node, node), options=options, clock=clock) for node in ("old", "new"))
    snapshot = SessionSnapshot("user", {})
    for backend in (old, new):
        await backend.start()
        await backend.leases.renew(6.0, ())
    ask, passes = old.store.home.ask, asyncio.Event()

    async def ask_late(script: str, keys: list[bytes], *arguments: Any) -> Any:
        if arguments[0] == "write":
            await passes.wait()
        return await ask(script, keys, *arguments)

    monkeypatch.setattr(old.store.home, "ask", ask_late)
    writing = asyncio.ensure_future(old.leases.write([SessionWrite("sid", snapshot, 1, 60.0, began=clock.now)]))
    await asyncio.sleep(0)
    clock.advance(1)
    assert await new.sessions.revoke("user", True) == []
    clock.advance(1)
    passes.set()
    assert await writing == [SessionTaken("sid", revoked=True, stored=False)]
    assert await new.sessions.peek("sid") is None
    for backend in (old, new):
        await backend.stop()


async def test_connection_that_the_server_closed_is_closed_here_too(redis: RedisServer) -> None:
    links = RedisLinks(lambda: connection_to(open_redis(RedisAddress(redis.url), 60.0)))
    used: list[RedisLink] = []

    async def end_connection(link: RedisLink) -> None:
        used.append(link)
        await link.ask("QUIT")
        async with asyncio.timeout(60.0):
            while link.usable:
                await asyncio.sleep(POLL_SECONDS)

    await links.ask(end_connection)
    assert not used[0]._connection.is_connected


def test_command_on_a_closed_connection_is_unavailable(redis: RedisServer) -> None:
    """uvloop raises an error of its own for it."""

    async def ask() -> None:
        connection: Any = await connection_to(open_redis(RedisAddress(redis.url), 2.0))
        link = RedisLink(connection)
        connection._writer.transport.abort()
        with pytest.raises(Unavailable):
            await link.ask("PING")

    uvloop.run(ask())
