"""Implements `ports.RecordQueue`: a JetStream stream into which NATS copies the runs of the shards, and nodes add rows.

Invariant: the recorder and its progress are one record of the cluster, so a node whose claim has expired cannot remove rows.
NATS copies with a delay; a read waits for everything registered before it.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ropewalk.adapters.backends.nats import jets, runs
from ropewalk.adapters.backends.nats.link import ApiError, NatsLink, Stored
from ropewalk.adapters.backends.nats.names import NatsOptions
from ropewalk.adapters.backends.nats.shard import JetShard
from ropewalk.adapters.backends.nats.table import Applied, Change, Table
from ropewalk.model.errors import Unavailable
from ropewalk.model.journal import QueuedRows, Row, RowKind, encode_publication_detail
from ropewalk.ports import Clock

logger = logging.getLogger("ropewalk.nats")

KEY = "q.recorder"
MAX_QUEUE_BYTES = 1024 * 1024 * 1024
"""Above it the oldest messages are dropped. NATS reserves the disk space at creation."""

READ_AT_ONCE = 256
COPY_SECONDS = 2.0
LOOK_AGAIN_SECONDS = 0.005
ASK_SECONDS = 0.5
"""How long an empty queue counts as complete, so that an idle recorder does not query every shard all the time."""

ROWS_IN_MESSAGE = 200


class RecorderClaim(Struct, frozen=True):
    """The recorder, the TTL of its claim from the receipt of this record on, and its progress: all messages up to `sequence`
    and the first `rows` rows of the next one are recorded."""

    node: str
    ttl: float
    sequence: int = 0
    rows: int = 0


class NatsRecordQueue:
    def __init__(
        self,
        link: NatsLink,
        table: Table,
        options: NatsOptions,
        node: str,
        clock: Clock,
        shards: Callable[[], Sequence[JetShard]],
    ) -> None:
        self._link = link
        self._table = table
        self.jet = f"{options.prefix.upper()}_QUEUE"
        self._subject = f"{options.prefix}.q.rows"
        self._node = node
        self._replicas = options.replicas
        self._clock = clock
        self._shards = shards
        self._adding = asyncio.Lock()
        self._rows = self._dropped = self._counted_at = 0
        self._made = 0  # how often this node has created the queue
        self._empty_at = -ASK_SECONDS
        self._read: dict[str, str] = {}  # by shard: the id of the last run read here
        self._copied: dict[str, int] = {}  # by JetStream stream: the last sequence that is in the queue
        self.clear()

    def clear(self) -> None:
        self._recorder: RecorderClaim | None = None
        self._until = 0.0

    def apply(self, applied: Applied) -> None:
        self._recorder = msgspec.msgpack.decode(applied.data, type=RecorderClaim)
        self._until = self._clock() + self._recorder.ttl

    @property
    def in_use(self) -> bool:
        """Whether a node records, or has recorded."""
        return self._recorder is not None

    def gauges(self) -> dict[str, float]:
        return {"record_queue_rows": self._rows, "record_queue_dropped_rows": self._dropped}

    # --- the claim ----------------------------------------------------------------------------------------------------

    async def claim(self, ttl: float) -> bool:
        await self._table.catch_up()
        await self._ensure()
        granted: list[bool] = []

        def decide() -> Sequence[Change]:
            current = self._recorder
            granted[:] = [current is None or current.node == self._node or self._until <= self._clock()]
            if not granted[0]:
                return ()
            reached = (0, 0) if current is None else (current.sequence, current.rows)
            return [_change(RecorderClaim(self._node, ttl, *reached))]

        await self._table.update(decide)
        return granted[0]

    async def restore(self) -> None:
        """Create the queue again if it was deleted. While a claim lasts, only its node does this. Raises `Unavailable` until it
        is there."""
        recorder = self._recorder
        if recorder is None:
            return
        if recorder.node == self._node:
            await self.claim(recorder.ttl)
        elif self._until <= self._clock():
            await self._ensure()
        elif await jets.info(self._link, self.jet) is None:
            raise Unavailable(f"JetStream has lost {self.jet}")

    async def _ensure(self) -> None:
        """Create the queue if it is missing. It copies from then on."""
        recorder = self._recorder
        found = await jets.info(self._link, self.jet)
        if found is None:
            found = await self._make()
            self._made += 1
            if recorder is not None:
                logger.error("NATS has lost the record queue")
                await self._table.update(lambda: self._restart_claim(recorder))
        for source in found["config"]["sources"]:
            self._copied.setdefault(source["name"], source.get("opt_start_seq", 1) - 1)

    def _restart_claim(self, recorder: RecorderClaim) -> Sequence[Change]:
        """The progress in the lost queue does not apply to the new one. The claim of another node ends. Without effect if
        another node was first."""
        ttl = recorder.ttl if recorder.node == self._node else 0.0
        return [_change(RecorderClaim(self._node, ttl))] if self._recorder == recorder else ()

    async def _make(self) -> Any:
        sources = []
        for shard in self._shards():
            await shard.verify()
            state = (await jets.info(self._link, shard.jet))["state"]
            start = {"opt_start_seq": state["last_seq"] + 1}
            sources.append({"name": shard.jet, "filter_subject": shard.names.any_stream, **start})
        if not sources:
            raise Unavailable("the shards are not available yet")
        config = jets.config(self.jet, [self._subject], self._replicas, -1, sources=sources, max_bytes=MAX_QUEUE_BYTES)
        return await jets.ensure(self._link, {**config, "allow_atomic": False, "allow_msg_ttl": False})

    # --- reading ------------------------------------------------------------------------------------------------------

    async def read(self, limit: int) -> QueuedRows:
        await self._table.catch_up()
        recorder, made = self._recorder, self._made
        if recorder is None:
            return QueuedRows()
        if asyncio.get_running_loop().time() - self._empty_at >= ASK_SECONDS:
            await self._wait_for_copies()
        messages = await self._messages(recorder.sequence + 1, limit + recorder.rows)
        self._empty_at = -ASK_SECONDS if messages else asyncio.get_running_loop().time()
        if messages and recorder.sequence and recorder.sequence != self._counted_at:
            self._counted_at = recorder.sequence
            self._dropped += messages[0].seq - recorder.sequence - 1
        for message in messages:
            if message.subject != self._subject:
                self._read[message.subject.partition(".g")[0]] = runs.decode(message.data).id
        rows, sequence, taken = _portion(messages, recorder, limit)
        self._rows = sum(1 for message in messages for _ in _rows(message)) - recorder.rows
        return QueuedRows(tuple(rows), f"{sequence} {taken} {made}")

    async def _messages(self, sequence: int, limit: int) -> list[Stored]:
        found: list[Stored] = []
        more, count = True, 0
        while more and count < limit:
            some, more = await self._link.read(self.jet, found[-1].seq + 1 if found else sequence, ">", READ_AT_ONCE)
            count += sum(1 for message in some for _ in _rows(message))
            found += some
            more = more and bool(some)
        return found

    async def _wait_for_copies(self) -> None:
        """Returns once the queue has the last message of each shard. If that was recorded and removed before this node started,
        the wait ends with a timeout, once."""
        deadline = asyncio.get_running_loop().time() + COPY_SECONDS
        for shard in self._shards():
            last = await self._link.last(shard.jet, shard.names.any_stream)
            if last is None or last.seq <= self._copied.get(shard.jet, 0):
                continue
            run_id = runs.decode(last.data).id
            while self._read.get(shard.names.ingest) != run_id and not await self._has_copy(shard, run_id):
                if asyncio.get_running_loop().time() > deadline:
                    break
                await asyncio.sleep(LOOK_AGAIN_SECONDS)
            self._copied[shard.jet] = last.seq

    async def _has_copy(self, shard: JetShard, run_id: str) -> bool:
        copy = await self._link.last(self.jet, shard.names.any_stream)
        return copy is not None and runs.decode(copy.data).id == run_id

    async def remove(self, piece: QueuedRows) -> bool:
        await self._table.catch_up()
        sequence, rows, made = map(int, piece.mark.split()) if piece.mark else (0, 0, self._made)
        if made != self._made:
            return False  # the rows were in a queue that was lost
        granted: list[bool] = []

        def decide() -> Sequence[Change]:
            current = self._recorder
            granted[:] = [current is not None and current.node == self._node and self._until > self._clock()]
            if current is None or not granted[0] or (sequence, rows) <= (current.sequence, current.rows):
                return ()
            return [_change(replace(current, sequence=sequence, rows=rows))]

        if await self._table.update(decide):
            await self._purge(sequence)
        return granted[0]

    async def _purge(self, sequence: int) -> None:
        """Delete recorded messages. After a failure the next purge deletes them."""
        try:
            await self._link.api(f"STREAM.PURGE.{self.jet}", {"seq": sequence + 1})
        except (ApiError, Unavailable) as error:
            logger.debug("recorded rows are still there", extra={"reason": str(error)})

    async def add(self, rows: Sequence[Row]) -> bool:
        if self._recorder is None:
            await self._table.catch_up()
        if self._recorder is None:
            return False
        async with self._adding:
            for begin in range(0, len(rows), ROWS_IN_MESSAGE):
                data = msgspec.msgpack.encode(rows[begin : begin + ROWS_IN_MESSAGE])
                await jets.store(self._link, [jets.JetWrite(self._subject, data)])
        return True


def _change(recorder: RecorderClaim) -> Change:
    return Change(KEY, msgspec.msgpack.encode(recorder))


def _portion(messages: Sequence[Stored], recorder: RecorderClaim, limit: int) -> tuple[list[Row], int, int]:
    """At most `limit` unrecorded rows, and their end: the sequence of the last complete message, and the number of rows of the
    next one."""
    found: list[Row] = []
    sequence, skipped = recorder.sequence, recorder.rows
    for message in messages:
        rows = list(_rows(message))[skipped:]
        if len(rows) > limit - len(found):
            room = limit - len(found)
            return found + rows[:room], sequence, skipped + room
        found += rows
        sequence, skipped = message.seq, 0
    return found, sequence, skipped


def _rows(message: Stored) -> Iterator[Row]:
    if message.subject.endswith(".q.rows"):
        yield from msgspec.msgpack.decode(message.data, type=list[Row])
        return
    run, offset = runs.decode(message.data), 0
    for item in run.items:
        if item.transient:
            continue
        yield Row(
            RowKind.PUBLISH,
            run.partition_key or run.stream,
            run.timestamp,
            run.stream,
            run.epoch,
            run.first + offset,
            item.payload,
            item.uid,
            item.exclude_socket,
            item.broadcast_type,
            detail=encode_publication_detail(item.ts_producer),
            producer=item.producer,
            sequence=item.sequence,
        )
        offset += 1
