"""Remote disconnects for all nodes: records that are there for a minute, so that a node whose connection was gone reads them
when it is back."""

from collections.abc import Callable
from secrets import token_urlsafe

import msgspec
from msgspec import Struct

from ropewalk.adapters.backends.nats.table import Applied, Change, Table
from ropewalk.model.messages import RemoteDisconnect

KEPT_SECONDS = 60.0


class KeptOrder(Struct, frozen=True):
    node: str
    order: RemoteDisconnect


class NatsOrders:
    """`node`: the one whose orders need not be told here, because it was the one to give them."""

    def __init__(self, table: Table, node: str, tell: Callable[[RemoteDisconnect], None]) -> None:
        self._table = table
        self._node = node
        self._tell = tell

    async def keep(self, order: RemoteDisconnect) -> None:
        data = msgspec.msgpack.encode(KeptOrder(self._node, order))
        await self._table.write([Change(f"c.{token_urlsafe(12)}", data, ttl=KEPT_SECONDS)])

    def apply(self, applied: Applied) -> None:
        order = msgspec.msgpack.decode(applied.data, type=KeptOrder)
        if applied.fresh and order.node != self._node:
            self._tell(order.order)
