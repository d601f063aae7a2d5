"""The broadcaster `redisx`: entries of a Redis stream, shared among the nodes of one consumer group.

Invariant: an entry is acknowledged and deleted only once its publications are registered. The entry's id is their uid, so that
they are registered once even if the entry is read again.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from importlib.resources import files
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct
from redis.asyncio import Redis
from redis.exceptions import MovedError, RedisError, ResponseError

from ropewalk.adapters.broadcasters.intake import Intake, Retrying
from ropewalk.connections.redis import CLOSED, RedisAddress, close_redis, open_redis
from ropewalk.core.stats import Stats
from ropewalk.model.errors import ClientError, Unavailable
from ropewalk.model.messages import Publication, RemoteDisconnect
from ropewalk.model.report import Gauges
from ropewalk.ports import Publisher
from ropewalk.protocol.publications import PublicationLimits

logger = logging.getLogger("ropewalk.broadcast")

FIELD = b"payload"
MAX_READ_ENTRIES = 500
MAX_READ_BYTES = 8 << 20
"""Of one read, estimated from the size of the last entries."""

MAX_RUN_PUBLICATIONS, MAX_RUN_BYTES = 500, 512 << 10
"""Registered together: meanwhile a shared store serves no other client. A single entry may be larger."""

ANSWER_SECONDS = 5.0
STOP_SECONDS = 5.0
CLAIM_SECONDS = 15.0
DEAD_SECONDS = 30.0
"""An entry without an acknowledgement for so long is claimed: the node that read it counts as dead."""

MAX_CLAIMED_ENTRIES = 100
CLEANUP_SECONDS = 3600.0
MAX_IDLE_SECONDS = 24 * 3600.0
"""An idle consumer without pending entries is removed. Nodes without a configured name leave one at each start."""

OWN, NEW = "0", ">"
_FIRST_ID = b"0-0"
_REMOVE_CONSUMER_SCRIPT = files(__package__).joinpath("leave.lua").read_text()

Entries = list[tuple[bytes, dict[bytes, bytes]]]


class _Run:
    """Entries that are registered together, by id, with the publications of each."""

    def __init__(self) -> None:
        self.entries: list[tuple[bytes, Sequence[Publication]]] = []
        self._free_publications, self._free_bytes = MAX_RUN_PUBLICATIONS, MAX_RUN_BYTES

    def fits(self, publications: int, size: int) -> bool:
        return publications <= self._free_publications and size <= self._free_bytes

    def add(self, entry: bytes, publications: Sequence[Publication], size: int) -> None:
        self.entries.append((entry, publications))
        self._free_publications -= len(publications)
        self._free_bytes -= size


class ConsumerGroup(Struct, frozen=True):
    """Where entries are read.

    Args:
        stream: the Redis stream.
        group: the consumer group that the nodes share.
        consumer: the name of this node. If it stays the same after a restart, the node continues with its pending entries.
        block: seconds that one read waits for entries.
    """

    stream: str
    group: str
    consumer: str
    block: float


class RedisStreamsBroadcaster:
    """Implements `ports.Broadcaster`."""

    def __init__(
        self, publisher: Publisher, limits: PublicationLimits, stats: Stats, address: RedisAddress, group: ConsumerGroup
    ) -> None:
        self._publisher = publisher
        self._intake = Intake("redisx", limits, stats)
        self._stats = stats
        self._stream, self._group, self._consumer = group.stream, group.group, group.consumer
        self._block = group.block
        self._seeds = address.each()
        self._redis = self._open(self._seeds[0])
        self._retrying = Retrying("redisx", self._consume, (RedisError, CLOSED))
        self._client_id = 0
        self._count = MAX_READ_ENTRIES
        self._pending = 0
        self._registered: list[bytes] = []  # entries that are not acknowledged yet
        self._claim_at = self._cleanup_at = 0.0

    def _open(self, address: RedisAddress) -> Redis:
        self._address = address
        # RESP2: the client returns other types with RESP3.
        return open_redis(address, self._block + ANSWER_SECONDS, protocol=2)

    async def start(self) -> None:
        logger.info(
            "broadcaster redisx",
            extra={"stream": self._stream, "group": self._group, "consumer": self._consumer},
        )
        self._retrying.start()

    async def stop(self) -> None:
        unblocking = asyncio.get_running_loop().create_task(self._unblock())
        await self._retrying.stop(self._block + STOP_SECONDS)
        await asyncio.wait([unblocking])
        if not self._retrying.problem:
            with contextlib.suppress(RedisError, OSError):
                await self._acknowledge()
                await self._remove(self._consumer)
        await close_redis(self._redis)

    def health(self) -> str:
        return self._retrying.health()

    def gauges(self) -> Gauges:
        return {"redisx_unregistered_entries": self._pending}

    async def _unblock(self) -> None:
        """End a read that waits for entries. If that fails, the read ends after `block` seconds."""
        if self._client_id and not self._retrying.problem:
            with contextlib.suppress(RedisError, OSError):
                await self._redis.client_unblock(self._client_id)

    # --- reading ------------------------------------------------------------------------------------------------------

    async def _consume(self) -> None:
        await self._find_group()
        await self._acknowledge()  # entries that were registered before the connection was lost
        self._pending = 0
        self._client_id = int(await self._redis.client_id())
        self._retrying.connected()
        while not self._retrying.stopping:
            try:
                await self._read_all(OWN)
                while not self._retrying.stopping:
                    await self._claim_if_due()
                    await self._read(NEW, self._block)
            except ResponseError as error:
                if not str(error).startswith("NOGROUP"):
                    raise
                logger.warning("the consumer group does not exist and is created again", extra={"group": self._group})
                await self._create_group()

    async def _find_group(self) -> None:
        """Create the group where the stream is: in a Redis Cluster the other servers redirect to its master."""
        try:
            await self._create_group()
        except MovedError as moved:
            await self._connect_to(self._address.at(moved.host or urlsplit(self._address.url).hostname or "", moved.port))
            await self._create_group()
        except (RedisError, OSError, CLOSED):
            self._seeds.append(self._seeds.pop(0))
            await self._connect_to(self._seeds[0])
            raise

    async def _connect_to(self, address: RedisAddress) -> None:
        if address != self._address:
            await close_redis(self._redis)
            self._redis = self._open(address)

    async def _create_group(self) -> None:
        """From the start of the stream: entries may be older than the first start of a node. Processed ones are deleted."""
        try:
            await self._redis.xgroup_create(self._stream, self._group, "0", mkstream=True)
        except ResponseError as error:
            if not str(error).startswith("BUSYGROUP"):
                raise

    async def _read_all(self, which: str) -> None:
        while not self._retrying.stopping and await self._read(which):
            pass

    async def _read(self, which: str, block: float = 0.0) -> int:
        """Read entries and register them. Returns their number."""
        answer: Any = await self._redis.xreadgroup(
            self._group, self._consumer, {self._stream: which}, count=self._count, block=round(1000 * block) or None
        )
        entries: Entries = answer[0][1] if answer else []
        if entries:
            size = sum(len(fields.get(FIELD, b"")) for _, fields in entries)
            self._count = max(1, min(MAX_READ_ENTRIES, MAX_READ_BYTES * len(entries) // max(1, size)))
            self._pending = len(entries)
            await self._process(entries)
            await self._acknowledge()
            self._pending = 0
        return len(entries)

    async def _claim_if_due(self) -> None:
        now = time.monotonic()
        if now < self._claim_at:
            return
        self._claim_at = now + CLAIM_SECONDS
        cursor = _FIRST_ID
        while True:
            answer: Any = await self._redis.xautoclaim(
                self._stream, self._group, self._consumer, int(1000 * DEAD_SECONDS), cursor, MAX_CLAIMED_ENTRIES
            )
            cursor, claimed = answer[0], answer[1]
            if claimed:
                self._stats.broadcasts_claimed += len(claimed)
                logger.warning("claimed the entries of a dead node", extra={"entries": len(claimed)})
                await self._read_all(OWN)  # they are pending for this consumer now
            if cursor == _FIRST_ID or self._retrying.stopping:
                break
        if now >= self._cleanup_at:
            self._cleanup_at = now + CLEANUP_SECONDS
            await self._remove_idle_consumers()

    # --- registering --------------------------------------------------------------------------------------------------

    async def _process(self, entries: Entries) -> None:
        run = _Run()
        for entry, fields in entries:
            if not fields:  # it was deleted after it was read
                self._registered.append(entry)
                continue
            payload = fields.get(FIELD, b"")
            content = await self._intake.read(fields.get(FIELD), self._key(entry))
            if not isinstance(content, list) or not run.fits(len(content), len(payload)):
                await self._register(run.entries)
                await asyncio.sleep(0)  # let other tasks run: a store in this process never blocks
                run = _Run()
            match content:
                case RemoteDisconnect() as order:
                    await self._disconnect(entry, order)
                case None:
                    self._registered.append(entry)
                case publications:
                    run.add(entry, publications, len(payload))
        await self._register(run.entries)

    def _key(self, entry: bytes) -> str:
        return f"x:{self._stream}:{entry.decode()}"

    async def _register(self, run: Sequence[tuple[bytes, Sequence[Publication]]]) -> None:
        """Register entries together. An entry that is refused does not affect the others."""
        if not run:
            return
        publications = [publication for _, those in run for publication in those]
        try:
            await self._retry_until_available(lambda: self._publisher.publish(publications))
        except ClientError as error:
            if len(run) > 1:
                for each in run:
                    await self._register([each])
                return
            self._intake.refuse(error, self._key(run[0][0]))
        self._registered += [entry for entry, _ in run]

    async def _disconnect(self, entry: bytes, order: RemoteDisconnect) -> None:
        await self._retry_until_available(lambda: self._publisher.disconnect(order))
        self._registered.append(entry)

    async def _retry_until_available(self, call: Callable[[], Awaitable[object]]) -> None:
        """Retry without a limit: the entries stay pending, and both calls are idempotent."""
        attempt = 0
        while True:
            try:
                await call()
                return
            except Unavailable as error:
                if not attempt:
                    logger.warning("publications of redisx are delayed: the store is unavailable", extra={"reason": str(error)})
                await self._retrying.pause(self._retrying.delay(attempt))
                attempt += 1

    async def _acknowledge(self) -> None:
        """Acknowledge and delete the registered entries, in one transaction."""
        if not self._registered:
            return
        async with self._redis.pipeline(transaction=True) as both:
            both.xack(self._stream, self._group, *self._registered)
            both.xdel(self._stream, *self._registered)
            await both.execute()
        self._registered = []

    # --- consumers ----------------------------------------------------------------------------------------------------

    async def _remove_idle_consumers(self) -> None:
        for other in await self._redis.xinfo_consumers(self._stream, self._group):
            if other["idle"] > 1000 * MAX_IDLE_SECONDS and other["name"] != self._consumer.encode():
                await self._remove(other["name"])

    async def _remove(self, consumer: str | bytes) -> None:
        """A consumer with pending entries is kept."""
        await self._redis.eval(_REMOVE_CONSUMER_SCRIPT, 1, self._stream, self._group, consumer)
