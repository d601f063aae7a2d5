"""Implements `ports.Leases`: one record per node, renewed periodically.

Invariant: clocks are never compared. Each node measures the time since another node's last renewal by its own clock.
"""

import asyncio
from collections.abc import Collection, Sequence
from secrets import randbits

import msgspec
from msgspec import Struct
from nats.aio.msg import Msg

from ropewalk.adapters.backends.nats.link import NatsLink
from ropewalk.adapters.backends.nats.names import token
from ropewalk.adapters.backends.nats.presence import NatsPresence
from ropewalk.adapters.backends.nats.sessions import NatsSessions
from ropewalk.adapters.backends.nats.shard import JetShard, ShardEnd
from ropewalk.adapters.backends.nats.table import Applied, Change, Table
from ropewalk.model.sessions import Renewal, SessionTaken, SessionWrite
from ropewalk.ports import Clock

NUMBER_BITS = 52


class Lease(Struct, frozen=True):
    node: str
    number: int
    ttl: float


class NatsLeases:
    same_host = False

    def __init__(self, table: Table, node: str, clock: Clock, sessions: NatsSessions, presence: NatsPresence) -> None:
        self._table = table
        self._node = node
        self._clock = clock
        self._sessions = sessions
        self._presence = presence
        self._ending = asyncio.Lock()
        self.clear()

    def clear(self) -> None:
        self._leases: dict[str, tuple[Lease, float]] = {}  # by node, and when it ends
        self._number = 0  # of this node's lease; a new one is chosen after a loss of records

    def apply(self, applied: Applied) -> None:
        lease = msgspec.msgpack.decode(applied.data, type=Lease)
        if lease.ttl > 0:
            self._leases[lease.node] = lease, self._clock() + lease.ttl
        else:
            self._leases.pop(lease.node, None)

    async def catch_up(self) -> None:
        """Returns once this node has all records written before. Raises `Unavailable`."""
        await self._table.catch_up()

    async def renew(self, ttl: float, received: Collection[str]) -> Renewal:
        await self._table.catch_up()
        if not self._lives(self._node):
            await self._end(self._node)
        elif not self._holds_lease():
            await self._leave_behind(ttl)

        def decide() -> Sequence[Change]:
            if not self._holds_lease():
                self._number = randbits(NUMBER_BITS) + 1
            return [_change(Lease(self._node, self._number, ttl)), *self._sessions.acknowledge(self._node, list(received))]

        await self._table.update(decide)
        return Renewal(self._number, tuple(self._sessions.copy.pending_orders(self._node)))

    async def write(self, sessions: Sequence[SessionWrite]) -> list[SessionTaken]:
        return await self._sessions.write(sessions)

    async def sweep(self) -> None:
        """End expired leases."""
        holders = self._sessions.copy.nodes() | self._presence.nodes()
        over = [node for node in holders | self._leases.keys() if node and not self._lives(node)]
        if over:
            await self._table.catch_up()
        for node in sorted(over):
            if not self._lives(node):
                await self._end(node)

    def others(self) -> set[str]:
        """The other live nodes."""
        return {node for node in self._leases if node != self._node and self._lives(node)}

    def _lives(self, node: str) -> bool:
        lease = self._leases.get(node)
        return lease is not None and lease[1] > self._clock()

    def _holds_lease(self) -> bool:
        """Whether this node still holds the lease it renewed last."""
        return self._lives(self._node) and self._leases[self._node][0].number == self._number

    async def _leave_behind(self, seconds: float) -> None:
        """Departures may be among lost records: the sessions and members of this node expire unless it registers them again
        within `seconds`."""
        async with self._ending:
            await self._sessions.leave_behind(self._node, self._holds_lease, seconds)
            await self._presence.leave_behind(self._node, self._holds_lease, seconds)

    async def _end(self, node: str) -> None:
        """Removes the lease first. If this node dies afterwards, the next sweep of any node does the rest. Later writes under a
        new lease are not affected."""

        def decide() -> Sequence[Change]:
            lease = self._leases.get(node)
            return () if lease is None or self._lives(node) else [_change(Lease(node, lease[0].number, 0.0))]

        async with self._ending:
            await self._table.update(decide)
            await self._sessions.node_died(node, lambda: self._lives(node))
            await self._presence.node_died(node, lambda: self._lives(node))


def _change(lease: Lease) -> Change:
    return Change(f"l.{token(lease.node)}", msgspec.msgpack.encode(lease), ttl=3600.0)


GRACE_SECONDS = 1.5
"""Timeout for answers of live nodes. They lost the same connection and reconnect within half a second."""


class ShardTip(Struct, frozen=True, array_like=True):
    node: str
    seen: ShardEnd


_decode = msgspec.msgpack.Decoder(ShardTip).decode


class PeerShardTips:
    """Nodes exchange the newest messages they have seen in a shard, so that no position is used twice.

    Invariant: whenever NATS may have lost messages, all nodes are queried before the next publication is registered. A node
    that is cut off for longer than `GRACE_SECONDS` at that moment answers too late: positions that only it knew may be reused.
    """

    def __init__(self, link: NatsLink, node: str, leases: NatsLeases) -> None:
        self._link = link
        self._node = node
        self._leases = leases

    async def ask(self, shard: JetShard) -> list[ShardEnd]:
        """Raises `Unavailable`."""

        def enough(answers: list[bytes]) -> bool:
            return self._leases.others() <= {_decode(each).node for each in answers}

        answers = map(_decode, await self._link.ask_all(shard.names.tip_requests, enough, GRACE_SECONDS))
        return [tip.seen for tip in answers if tip.node != self._node]

    async def answer(self, shard: JetShard) -> None:
        """Start to answer requests for the shard. Raises `Unavailable`."""

        async def respond(message: Msg) -> None:
            await message.respond(msgspec.msgpack.encode(ShardTip(self._node, shard.seen)))

        await self._link.subscribe(shard.names.tip_requests, respond)
