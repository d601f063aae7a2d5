"""How a shard passes from the node that holds it to the one that owns it by the table.

Invariant: at any time one node at the most serves a shard. The order is what matters:

1. The holder serves it no more (`moving`), takes it out of its store, and sends it in pieces. The receiver keeps them apart.
2. The receiver has all of it, and in its journal if it has one, and says so.
3. The holder decides: it writes down that the receiver holds the shard from now on, and tells everybody.
4. The receiver hears of that, from the holder or from whoever else knows, and serves it.

Whatever breaks before 3 leaves the shard with the holder, which puts it back and serves it again; the next attempt begins at
1, and the receiver forgets what it got before. Whatever breaks after 3 leaves it with the receiver. A holder that dies before 3
has the shard in its journal, or it is lost with it; one that dies after 3 has it no more. In between nobody serves it, and
whoever asks waits for a while.
"""

import logging
import secrets
import time
from collections.abc import Callable, Collection

import msgspec

from ropewalk.adapters.backends.ring.links import NodeCalls
from ropewalk.adapters.backends.workers.shards import ShardContent, put_in, take_out
from ropewalk.adapters.backends.workers.store import SharedStore
from ropewalk.core.ring_state import RingState
from ropewalk.model.errors import Unavailable
from ropewalk.model.ring import Possession
from ropewalk.model.shards import MemberContent, SessionContent
from ropewalk.ports import Journal

logger = logging.getLogger("ropewalk.ring")

EXPECTED_SECONDS = 10.0
"""For how long after its last piece a shard counts as on its way. Its holder may have died."""


class ShardSender:
    """`moving`: shards that are not served while they are in it. `decided` is called in the very step of a decision, and when
    something is gone. `handed_over` counts shards."""

    def __init__(self, state: RingState, store: SharedStore, moving: set[int], decided: Callable[[], None]) -> None:
        self._state = state
        self._store = store
        self._moving = moving
        self._decided = decided
        self._away: _Transfer | None = None
        self.handed_over = 0

    def has(self, names: Collection[str]) -> bool:
        """Whether what is on its way has something of one of these sids or identities."""
        return self._away is not None and self._away.has(names)

    async def hand_over(self, shard: int, target: str, node: NodeCalls) -> None:
        """Raises `Unavailable`, and then this node holds it as before."""
        self._moving.add(shard)
        try:
            content = await take_out(self._store, shard)
            before = self._state.possession(shard)
            self._away = transfer = _Transfer(secrets.token_hex(8), content)
            try:
                await self._send(transfer, before, node)
            except BaseException:
                put_in(self._store, content)
                raise
            if self._state.serves(shard) and self._state.possession(shard) == before:
                self._state.mark_handed_over(shard, target)
                self.handed_over += 1
        finally:
            self._away = None
            self._moving.discard(shard)
        self._decided()
        logger.info("handed a shard over", extra={"shard": shard, "node": target})

    async def drop(self, shard: int) -> None:
        """What is here of a shard that another node holds; it is `moving` until then."""
        try:
            await take_out(self._store, shard)
        finally:
            self._moving.discard(shard)
        self._decided()

    async def _send(self, transfer: "_Transfer", possession: Possession, node: NodeCalls) -> None:
        shard = transfer.content.shard
        for piece in transfer.content.pieces():
            await node.call("receive", shard, transfer.id, transfer.pieces, piece)
            transfer.pieces += 1
        await node.call("received", shard, transfer.id, transfer.pieces, possession)


class ShardReceiver:
    """Keeps what comes until it may be served."""

    def __init__(self, state: RingState, store: SharedStore, journal: Journal | None) -> None:
        self._state = state
        self._store = store
        self._journal = journal
        self._coming: dict[int, _Transfer] = {}

    def has(self, names: Collection[str]) -> bool:
        """Whether what has come, and may be served any moment, has something of one of these sids or identities."""
        recent = time.monotonic() - EXPECTED_SECONDS
        return any(transfer.touched > recent and transfer.has(names) for transfer in self._coming.values())

    async def receive(self, shard: int, transfer: str, number: int, piece: bytes) -> None:
        """The next piece; the first one of a transfer is the end of all transfers of the shard before it."""
        if number == 0:
            self._state.mark_arriving(shard)
            self._coming[shard] = _Transfer(transfer, ShardContent(shard))
        self._expected(shard, transfer, number).add(piece)

    async def received(self, shard: int, transfer: str, count: int, possession: Possession) -> None:
        """That was all of it. Returns when nothing but the holder's decision is missing."""
        coming = self._expected(shard, transfer, count)
        if self._journal is not None and (rows := coming.content.rows()):
            await self._journal.write(rows)
        self._expected(shard, transfer, count)
        self._state.mark_arrived(shard, possession)

    def serve(self, moving: Collection[int]) -> None:
        """What was given to this node and has come whole, unless something older of it is being dropped."""
        for shard in self._state.shards_to_serve():
            if shard in moving:
                continue
            put_in(self._store, self._coming.pop(shard).content)
            self._state.mark_served(shard)
            logger.info("a shard has come", extra={"shard": shard})

    def _expected(self, shard: int, transfer: str, number: int) -> "_Transfer":
        coming = self._coming.get(shard)
        if coming is None or coming.id != transfer or coming.pieces != number:
            raise Unavailable("the transfer of this shard was broken off")
        return coming


class _Transfer:
    """Of one shard: what is on its way, and how many pieces of it."""

    def __init__(self, id: str, content: ShardContent) -> None:
        self.id = id
        self.content = content
        self.pieces = 0
        self.touched = time.monotonic()
        self._names: set[str] = set()
        self._looked_at = 0

    def has(self, names: Collection[str]) -> bool:
        for item in self.content.items[self._looked_at :]:
            if isinstance(item, SessionContent):
                self._names.add(item.ids)
            elif isinstance(item, MemberContent):
                self._names.update(seat.sid for seat in item.seats)
        self._looked_at = len(self.content.items)
        return not self._names.isdisjoint(names)

    def add(self, piece: bytes) -> None:
        self.touched = time.monotonic()
        try:
            self.content.add(piece)
        except msgspec.DecodeError as error:
            raise Unavailable(f"a piece of a shard cannot be read: {error}") from None
        self.pieces += 1
