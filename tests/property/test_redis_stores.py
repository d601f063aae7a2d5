"""Sessions, presence and leases in Redis against the reference implementation: random calls to both, in the
same order and at the same times, return the same answers."""

from collections.abc import Iterator
from itertools import count
from random import Random
from typing import Any

import pytest

from ropewalk.adapters.backends.redis import RedisBackend, RedisOptions
from ropewalk.connections.redis import RedisAddress
from ropewalk.core.rules import Rulebook
from ropewalk.model.errors import LimitReached
from ropewalk.model.limits import StoreLimits
from ropewalk.model.presence import Member
from ropewalk.model.rules import StreamRules
from ropewalk.model.sessions import SessionSnapshot, SessionWrite
from ropewalk.ports import Backend, NodeName
from ropewalk.testing.clock import ManualClock
from ropewalk.testing.shared_store import LosableStore
from ropewalk.testing.simulation.unreliable import Air, Counts, Faults, UnreliableBackend
from tests.services import RedisServer, redis_server

NODES = ("one", "two")
STREAMS = ("a", "b", "a:b")
SIDS = tuple("stuvwxyz")
IDENTITIES = ("bo", "cy")
MEMBERS = 3
CALLS = 400
_numbers = count()

pytestmark = pytest.mark.tier("standard")


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with redis_server("--appendonly", "no") as server:
        yield server


class Pair:
    """The same two nodes on both stores."""

    def __init__(self, redis: RedisServer, seed: int) -> None:
        self.rng = Random(seed)
        self.clock = ManualClock()
        self.version = 0
        rules = Rulebook(StreamRules())
        faults = Faults(latency=0.0)
        faults.heal()
        air = Air(faults, Counts(), Random(1))
        limits = StoreLimits(max_members=MEMBERS)
        store = LosableStore(rules, self.clock, air, limits)
        prefix = f"pair{next(_numbers)}:"
        self.plain = {node: UnreliableBackend(store, air, node, lambda sid: None) for node in NODES}
        self.redis = {
            node: RedisBackend(rules, RedisAddress(redis.url), NodeName(node, node), limits, RedisOptions(prefix), self.clock)
            for node in NODES
        }
        self.leases: dict[str, dict[str, int]] = {"plain": {}, "redis": {}}

    async def call(self) -> str:
        """Make one random call to both. Returns the difference."""
        name = self.rng.choice(sorted(each for each in dir(self) if each.startswith("do_")))
        node = self.rng.choice(NODES)
        arguments = self.draw(name, node)
        answers = []
        for kind, backend in (("plain", self.plain[node]), ("redis", self.redis[node])):
            try:
                answers.append(await getattr(self, name)(kind, backend, node, *arguments))
            except LimitReached:
                answers.append("full")
        return "" if answers[0] == answers[1] else f"{name} {node} {arguments}: {answers}"

    def draw(self, name: str, node: str) -> tuple[Any, ...]:
        rng = self.rng
        sid, stream = rng.choice(SIDS), rng.choice(STREAMS)
        if name == "do_write":
            self.version += 1
            version = self.version if rng.random() < 0.9 else max(1, self.version - 5)
            ttl = rng.choice((0.0, 5.0, 10.0))
            began = rng.choice((None, self.clock.now, self.clock.now - 3))
            snapshot = SessionSnapshot(rng.choice(IDENTITIES), {}, expires_at=float(self.version))
            return (SessionWrite(sid, snapshot, version, ttl, rng.random() < 0.7, began),)
        if name == "do_save":
            return sid, SessionSnapshot(rng.choice(IDENTITIES), {}, expires_at=rng.random()), rng.choice((3.0, 9.0))
        if name == "do_take":
            return sid, rng.choice((*SIDS, ""))
        if name in ("do_join", "do_leave"):
            member = Member(rng.choice(("m", "n", "o", "p")), rng.choice((b"", b'{"a":1}', b"2")))
            return stream, f"{node}{sid}", member
        if name == "do_detach":
            return f"{node}{sid}", rng.choice((0.0, 4.0, 15.0))
        if name == "do_adopt":
            return f"{rng.choice(NODES)}{rng.choice(SIDS)}", f"{node}{sid}"
        if name == "do_pass_time":
            self.clock.advance(rng.choice((0.5, 1.0, 3.0, 7.0)))
        return {
            "do_peek": (sid,),
            "do_revoke": (rng.choice(IDENTITIES),),
            "do_expired": (rng.choice((1, 3, 10)),),
            "do_page": (stream, rng.choice(("", "m", "n"))),
            "do_renew": (rng.sample(SIDS, 2),),
        }.get(name, ())

    async def do_write(self, kind: str, backend: Backend, node: str, write: SessionWrite) -> Any:
        assert backend.leases is not None
        return await backend.leases.write([write])

    async def do_save(self, kind: str, backend: Backend, node: str, sid: str, snapshot: SessionSnapshot, ttl: float) -> Any:
        return await backend.sessions.save(sid, snapshot, ttl)

    async def do_peek(self, kind: str, backend: Backend, node: str, sid: str) -> Any:
        return await backend.sessions.peek(sid)

    async def do_take(self, kind: str, backend: Backend, node: str, sid: str, successor: str) -> Any:
        return await backend.sessions.take(sid, successor)

    async def do_revoke(self, kind: str, backend: Backend, node: str, ids: str) -> Any:
        return sorted(await backend.sessions.revoke(ids, True), key=lambda pair: pair[0])

    async def do_expired(self, kind: str, backend: Backend, node: str, limit: int) -> Any:
        """The order of sessions that are due is not defined."""
        return len(await backend.sessions.take_expired(limit))

    async def do_renew(self, kind: str, backend: Backend, node: str, live_sids: list[str]) -> Any:
        """Both or neither start a new lease. State of the former lease is removed by the sweep at the latest."""
        assert backend.leases is not None
        await backend.sweep()
        renewal = await backend.leases.renew(6.0, live_sids)
        is_new = self.leases[kind].get(node) != renewal.lease
        self.leases[kind][node] = renewal.lease
        return is_new, sorted(renewal.taken, key=lambda taken: taken.sid)

    async def do_pass_time(self, kind: str, backend: Backend, node: str) -> Any:
        await backend.sweep()
        gauges = backend.gauges()
        return gauges["sessions_kept"], gauges["presence_members"]

    async def do_join(self, kind: str, backend: Backend, node: str, stream: str, sid: str, member: Member) -> Any:
        return await backend.presence.join(stream, sid, member)

    async def do_leave(self, kind: str, backend: Backend, node: str, stream: str, sid: str, member: Member) -> Any:
        return await backend.presence.leave(stream, sid)

    async def do_detach(self, kind: str, backend: Backend, node: str, sid: str, ttl: float) -> Any:
        return await backend.presence.detach(sid, ttl)

    async def do_adopt(self, kind: str, backend: Backend, node: str, old_sid: str, new_sid: str) -> Any:
        return await backend.presence.adopt(old_sid, new_sid)

    async def do_expire(self, kind: str, backend: Backend, node: str) -> Any:
        events = await backend.presence.expire()
        return sorted((event.type, event.stream, event.member.id, event.member.info) for event in events)

    async def do_page(self, kind: str, backend: Backend, node: str, stream: str, after: str) -> Any:
        return await backend.presence.members(stream, after, 2)


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.tier("all")) for seed in range(2, 8))])
async def test_random_calls_have_the_same_answers(seed: int, redis: RedisServer) -> None:
    pair = Pair(redis, seed)
    backends: list[Backend] = [*pair.plain.values(), *pair.redis.values()]
    for backend in backends:
        await backend.start()
    try:
        for number in range(CALLS):
            assert not (difference := await pair.call()), f"call {number}: {difference}"
    finally:
        for backend in backends:
            await backend.stop()
