"""Implements `ports.Leases`: one record a node, renewed now and then.

Invariant: no two clocks are compared. Each node measures by its own clock for how long it has not seen another one renew.
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
        self._number = 0  # of this node's lease; another one is taken after records were lost

    def apply(self, applied: Applied) -> None:
        lease = msgspec.msgpack.decode(applied.data, type=Lease)
        if lease.ttl > 0:
            self._leases[lease.node] = lease, self._clock() + lease.ttl
        else:
            self._leases.pop(lease.node, None)

    async def catch_up(self) -> None:
        """Until this node has heard of everything that was written before. Raises `Unavailable`."""
        await self._table.catch_up()

    async def renew(self, ttl: float, received: Collection[str]) -> Renewal:
        await self._table.catch_up()
        if not self._lives(self._node):
            await self._end(self._node)
        elif not self._goes_on():
            await self._leave_behind(ttl)

        def decide() -> Sequence[Change]:
            if not self._goes_on():
                self._number = randbits(NUMBER_BITS) + 1
            return [_change(Lease(self._node, self._number, ttl)), *self._sessions.hearing(self._node, list(received))]

        await self._table.settle(decide)
        return Renewal(self._number, tuple(self._sessions.copy.untold(self._node)))

    async def write(self, sessions: Sequence[SessionWrite]) -> list[SessionTaken]:
        return await self._sessions.write(sessions)

    async def sweep(self) -> None:
        """End the leases that are over."""
        holders = self._sessions.copy.nodes() | self._presence.nodes()
        over = [node for node in holders | self._leases.keys() if node and not self._lives(node)]
        if over:
            await self._table.catch_up()
        for node in sorted(over):
            if not self._lives(node):
                await self._end(node)

    def others(self) -> set[str]:
        """The other nodes that live."""
        return {node for node in self._leases if node != self._node and self._lives(node)}

    def _lives(self, node: str) -> bool:
        lease = self._leases.get(node)
        return lease is not None and lease[1] > self._clock()

    def _goes_on(self) -> bool:
        """Whether the lease of this node is the one that it had before."""
        return self._lives(self._node) and self._leases[self._node][0].number == self._number

    async def _leave_behind(self, seconds: float) -> None:
        """Records were lost, and maybe departures among them: what was registered for this node ends, unless the node registers
        it again within `seconds`."""
        async with self._ending:
            await self._sessions.leave_behind(self._node, self._goes_on, seconds)
            await self._presence.leave_behind(self._node, self._goes_on, seconds)

    async def _end(self, node: str) -> None:
        """The lease first: what comes after it is done by the next sweep of any node if this one dies before. Whatever the node
        writes once it has a new lease is seen after that."""

        def decide() -> Sequence[Change]:
            lease = self._leases.get(node)
            return () if lease is None or self._lives(node) else [_change(Lease(node, lease[0].number, 0.0))]

        async with self._ending:
            await self._table.settle(decide)
            await self._sessions.node_died(node, lambda: self._lives(node))
            await self._presence.node_died(node, lambda: self._lives(node))


def _change(lease: Lease) -> Change:
    return Change(f"l.{token(lease.node)}", msgspec.msgpack.encode(lease), ttl=3600.0)


GRACE_SECONDS = 1.5
"""How long nodes with a lease are waited for: they have lost the same connection, and come back within half a second."""


class ShardTip(Struct, frozen=True, array_like=True):
    node: str
    seen: ShardEnd


_decode = msgspec.msgpack.Decoder(ShardTip).decode


class PeerShardTips:
    """Nodes exchange the ends of shards that they have seen, so that no position is used twice.

    Invariant: they are asked whenever NATS may have lost something, before the next publication is registered. A node that is
    cut off for longer than `GRACE_SECONDS` at that moment answers too late: positions that only it knew may be used again.
    """

    def __init__(self, link: NatsLink, node: str, leases: NatsLeases) -> None:
        self._link = link
        self._node = node
        self._leases = leases

    async def ask(self, shard: JetShard) -> list[ShardEnd]:
        """Raises `Unavailable`."""

        def enough(said: list[bytes]) -> bool:
            return self._leases.others() <= {_decode(each).node for each in said}

        said = map(_decode, await self._link.ask_all(shard.names.witnesses, enough, GRACE_SECONDS))
        return [testimony.seen for testimony in said if testimony.node != self._node]

    async def answer(self, shard: JetShard) -> None:
        """From now on. Raises `Unavailable`."""

        async def asked(message: Msg) -> None:
            await message.respond(msgspec.msgpack.encode(ShardTip(self._node, shard.seen)))

        await self._link.subscribe(shard.names.witnesses, asked)
