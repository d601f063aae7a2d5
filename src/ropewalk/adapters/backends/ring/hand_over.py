"""Hands a shard over from its holder to its owner in the table.

Invariant: at most one node serves a shard at any time. The steps:

1. The holder stops serving the shard (`moving`), takes it out of its store, and sends it in pieces. The receiver stages them.
2. The receiver has all pieces, writes them to its journal if it has one, and confirms.
3. The holder decides: it records the receiver as the new holder, and sends this to all nodes.
4. The receiver learns the decision from the holder or another node, and serves the shard.

A failure before step 3 leaves the shard with the holder: it puts the shard back and serves it. The next attempt begins with
step 1, and the receiver discards the earlier pieces. A failure after step 3 leaves the shard with the receiver. If the holder
dies before step 3, the shard is in its journal, or lost with the holder. Between steps 1 and 4 no node serves the shard, and
calls wait for a while.
"""

import logging
import secrets
import time
from collections.abc import Callable, Collection

import msgspec

from ropewalk.adapters.backends.memory.shards import ShardContent, put_in, take_out
from ropewalk.adapters.backends.workers.link import Caller
from ropewalk.adapters.backends.workers.store import SharedStore
from ropewalk.core.ring_state import RingState
from ropewalk.model.errors import Unavailable
from ropewalk.model.ring import Possession
from ropewalk.model.shards import MemberContent, SessionContent
from ropewalk.ports import Journal

logger = logging.getLogger("ropewalk.ring")

EXPECTED_SECONDS = 10.0
"""How long after its last piece a transfer counts as active. Its holder may have died."""


class ShardSender:
    """Sends shards to other nodes.

    Args:
        moving: shards that are not served now.
        decided: called in the step of a decision, and after a shard was dropped.

    Attributes:
        handed_over: number of shards.
    """

    def __init__(self, state: RingState, store: SharedStore, moving: set[int], decided: Callable[[], None]) -> None:
        self._state = state
        self._store = store
        self._moving = moving
        self._decided = decided
        self._away: _Transfer | None = None
        self.handed_over = 0

    def has(self, names: Collection[str]) -> bool:
        """Whether the current transfer has a session of one of these sids or identities."""
        return self._away is not None and self._away.has(names)

    async def hand_over(self, shard: int, target: str, node: Caller) -> None:
        """Raises `Unavailable`; then this node still holds the shard."""
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
        """Drop the local copy of a shard that another node holds. It is `moving` until then."""
        try:
            await take_out(self._store, shard)
        finally:
            self._moving.discard(shard)
        self._decided()

    async def _send(self, transfer: "_Transfer", possession: Possession, node: Caller) -> None:
        shard = transfer.content.shard
        for piece in transfer.content.pieces():
            await node.call("receive", shard, transfer.id, transfer.pieces, piece)
            transfer.pieces += 1
        await node.call("received", shard, transfer.id, transfer.pieces, possession)


class ShardReceiver:
    """Stages received shards until they may be served."""

    def __init__(self, state: RingState, store: SharedStore, journal: Journal | None) -> None:
        self._state = state
        self._store = store
        self._journal = journal
        self._coming: dict[int, _Transfer] = {}

    def has(self, names: Collection[str]) -> bool:
        """Whether a staged shard has a session of one of these sids or identities."""
        recent = time.monotonic() - EXPECTED_SECONDS
        return any(transfer.touched > recent and transfer.has(names) for transfer in self._coming.values())

    def receive(self, shard: int, transfer: str, number: int, piece: bytes) -> None:
        """The next piece. The first piece of a transfer ends earlier transfers of the shard."""
        if number == 0:
            self._state.mark_arriving(shard)
            self._coming[shard] = _Transfer(transfer, ShardContent(shard))
        self._expected(shard, transfer, number).add(piece)

    async def received(self, shard: int, transfer: str, count: int, possession: Possession) -> None:
        """The last piece was sent. Returns when only the holder's decision is missing."""
        coming = self._expected(shard, transfer, count)
        if self._journal is not None and (rows := coming.content.rows()):
            await self._journal.write(rows)
        self._expected(shard, transfer, count)
        self._state.mark_arrived(shard, possession)

    def serve(self, moving: Collection[int]) -> None:
        """Serve shards that were given to this node and are complete, unless an older copy is being dropped."""
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
    """The transfer of one shard, and the number of its pieces so far."""

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
