"""What nodes tell each other of the ends of shards, so that a node that knows nothing of what NATS has lost gives no position
a second time.

Invariant: it is asked whenever NATS may have lost something, before the next publication is registered. A node that is cut off
for longer than `GRACE_SECONDS` while it happens is heard too late: until it is, positions may be given that only it knew of.
"""

import msgspec
from msgspec import Struct
from nats.aio.msg import Msg

from ropewalk.adapters.backends.nats.leases import NatsLeases
from ropewalk.adapters.backends.nats.link import NatsLink
from ropewalk.adapters.backends.nats.shard import JetShard, ShardEnd

GRACE_SECONDS = 1.5
"""How long nodes with a lease are waited for: they have lost the same connection, and come back within half a second."""


class Testimony(Struct, frozen=True, array_like=True):
    node: str
    seen: ShardEnd


_decode = msgspec.msgpack.Decoder(Testimony).decode


class Witnesses:
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
            await message.respond(msgspec.msgpack.encode(Testimony(self._node, shard.seen)))

        await self._link.subscribe(shard.names.witnesses, asked)
