"""The broadcaster `redisx`: entries of a Redis stream, shared among the nodes of one consumer group.

Invariant: an entry is acknowledged and deleted only once its publications are registered. It is registered under the id of the
entry, and so once, however often it is read.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from importlib.resources import files
from typing import Any
from urllib.parse import urlsplit

from redis.asyncio import Redis
from redis.exceptions import MovedError, RedisError, ResponseError

from ropewalk.adapters.broadcasters.intake import Intake
from ropewalk.adapters.broadcasters.retrying import Retrying
from ropewalk.connections.redis import CLOSED, RedisAddress, close_redis, open_redis
from ropewalk.core.stats import Stats
from ropewalk.model.errors import ClientError, Unavailable
from ropewalk.model.messages import Publication, RemoteDisconnect
from ropewalk.model.report import Gauges
from ropewalk.ports import Publisher
from ropewalk.protocol.publications import PublicationLimits

logger = logging.getLogger("ropewalk.broadcast")

FIELD = b"payload"
READ_AT_ONCE = 500
READ_BYTES = 8 << 20
"""Bytes that one read should bring at most, judged by the size of the entries that came last."""

REGISTERED_AT_ONCE, REGISTERED_BYTES = 500, 512 << 10
"""Publications and bytes in one step: a store that is shared holds up all others for so long. An entry alone may be larger."""

ANSWER_SECONDS = 5.0
STOP_SECONDS = 5.0
CLAIM_SECONDS = 15.0
DEAD_SECONDS = 30.0
"""An entry that nobody acknowledged for so long is taken over: the node that read it counts as dead."""

CLAIMED_AT_ONCE = 100
TIDY_SECONDS = 3600.0
FORGOTTEN_SECONDS = 24 * 3600.0
"""A consumer with nothing pending that was quiet for so long is removed. Nodes without a name of their own leave one each."""

OWN, NEW = "0", ">"
_FROM_THE_BEGINNING = b"0-0"
_LEAVE = files(__package__).joinpath("leave.lua").read_text()

Entries = list[tuple[bytes, dict[bytes, bytes]]]


class _Run:
    """Entries that are registered together, by id, with the publications of each."""

    def __init__(self) -> None:
        self.entries: list[tuple[bytes, Sequence[Publication]]] = []
        self._room, self._bytes = REGISTERED_AT_ONCE, REGISTERED_BYTES

    def takes(self, publications: int, size: int) -> bool:
        return publications <= self._room and size <= self._bytes

    def add(self, entry: bytes, publications: Sequence[Publication], size: int) -> None:
        self.entries.append((entry, publications))
        self._room -= len(publications)
        self._bytes -= size


class RedisStreamsBroadcaster:
    """Implements `ports.Broadcaster`. `consumer` is the name of this node: under one that stays the same it first goes on with
    what it left unfinished."""

    def __init__(
        self,
        publisher: Publisher,
        limits: PublicationLimits,
        stats: Stats,
        address: RedisAddress,
        *,
        stream: str,
        group: str,
        consumer: str,
        block: float,
    ) -> None:
        self._publisher = publisher
        self._intake = Intake("redisx", limits, stats)
        self._stats = stats
        self._stream, self._group, self._consumer = stream, group, consumer
        self._block = block
        self._seeds = address.each()
        self._redis = self._open(self._seeds[0])
        self._retrying = Retrying("redisx", self._consume, (RedisError, CLOSED))
        self._link = 0
        self._count = READ_AT_ONCE
        self._waiting = 0
        self._registered: list[bytes] = []  # entries that are not acknowledged yet
        self._claim_at = self._tidy_at = 0.0

    def _open(self, address: RedisAddress) -> Redis:
        self._address = address
        # RESP2, for in RESP3 the client gives answers of another shape.
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
        return {"redisx_unregistered_entries": self._waiting}

    async def _unblock(self) -> None:
        """End a read that waits for entries. Where that fails, it ends by itself in a moment."""
        if self._link and not self._retrying.problem:
            with contextlib.suppress(RedisError, OSError):
                await self._redis.client_unblock(self._link)

    # --- reading ------------------------------------------------------------------------------------------------------

    async def _consume(self) -> None:
        await self._find()
        await self._acknowledge()  # what was registered before the connection was lost
        self._waiting = 0
        self._link = int(await self._redis.client_id())
        self._retrying.works()
        while not self._retrying.stopping:
            try:
                await self._take_all(OWN)
                while not self._retrying.stopping:
                    await self._claim_when_due()
                    await self._take(NEW, self._block)
            except ResponseError as error:
                if not str(error).startswith("NOGROUP"):
                    raise
                logger.warning("the consumer group is gone and is created again", extra={"group": self._group})
                await self._create_group()

    async def _find(self) -> None:
        """Make the group, wherever the stream is: in a Redis Cluster one master has it, which any other one names."""
        try:
            await self._create_group()
        except MovedError as moved:
            await self._go_to(self._address.at(moved.host or urlsplit(self._address.url).hostname or "", moved.port))
            await self._create_group()
        except (RedisError, OSError, CLOSED):
            self._seeds.append(self._seeds.pop(0))
            await self._go_to(self._seeds[0])
            raise

    async def _go_to(self, address: RedisAddress) -> None:
        if address != self._address:
            await close_redis(self._redis)
            self._redis = self._open(address)

    async def _create_group(self) -> None:
        """From the beginning of the stream: what was sent before the first start counts, and what is done with is deleted."""
        try:
            await self._redis.xgroup_create(self._stream, self._group, "0", mkstream=True)
        except ResponseError as error:
            if not str(error).startswith("BUSYGROUP"):
                raise

    async def _take_all(self, which: str) -> None:
        while not self._retrying.stopping and await self._take(which):
            pass

    async def _take(self, which: str, block: float = 0.0) -> int:
        """Read entries and bring them in; how many there were."""
        answer: Any = await self._redis.xreadgroup(
            self._group, self._consumer, {self._stream: which}, count=self._count, block=round(1000 * block) or None
        )
        entries: Entries = answer[0][1] if answer else []
        if entries:
            size = sum(len(fields.get(FIELD, b"")) for _, fields in entries)
            self._count = max(1, min(READ_AT_ONCE, READ_BYTES * len(entries) // max(1, size)))
            self._waiting = len(entries)
            await self._bring_in(entries)
            await self._acknowledge()
            self._waiting = 0
        return len(entries)

    async def _claim_when_due(self) -> None:
        now = time.monotonic()
        if now < self._claim_at:
            return
        self._claim_at = now + CLAIM_SECONDS
        cursor = _FROM_THE_BEGINNING
        while True:
            answer: Any = await self._redis.xautoclaim(
                self._stream, self._group, self._consumer, int(1000 * DEAD_SECONDS), cursor, CLAIMED_AT_ONCE
            )
            cursor, claimed = answer[0], answer[1]
            if claimed:
                self._stats.broadcasts_claimed += len(claimed)
                logger.warning("entries of a node that seems dead are taken over", extra={"entries": len(claimed)})
                await self._take_all(OWN)  # they are pending for this consumer now
            if cursor == _FROM_THE_BEGINNING or self._retrying.stopping:
                break
        if now >= self._tidy_at:
            self._tidy_at = now + TIDY_SECONDS
            await self._tidy()

    # --- registering --------------------------------------------------------------------------------------------------

    async def _bring_in(self, entries: Entries) -> None:
        run = _Run()
        for entry, fields in entries:
            if not fields:  # it was deleted after it was read
                self._registered.append(entry)
                continue
            payload = fields.get(FIELD, b"")
            said = await self._intake.read(fields.get(FIELD), self._key(entry))
            if not isinstance(said, list) or not run.takes(len(said), len(payload)):
                await self._register(run.entries)
                await asyncio.sleep(0)  # a turn for everybody else: a store in this process never waits
                run = _Run()
            match said:
                case RemoteDisconnect() as order:
                    await self._obey(entry, order)
                case None:
                    self._registered.append(entry)
                case publications:
                    run.add(entry, publications, len(payload))
        await self._register(run.entries)

    def _key(self, entry: bytes) -> str:
        return f"x:{self._stream}:{entry.decode()}"

    async def _register(self, run: Sequence[tuple[bytes, Sequence[Publication]]]) -> None:
        """All of them in one step; one that can never be registered costs the others nothing."""
        if not run:
            return
        publications = [publication for _, those in run for publication in those]
        try:
            await self._until_available(lambda: self._publisher.publish(publications))
        except ClientError as error:
            if len(run) > 1:
                for each in run:
                    await self._register([each])
                return
            self._intake.refuse(error, self._key(run[0][0]))
        self._registered += [entry for entry, _ in run]

    async def _obey(self, entry: bytes, order: RemoteDisconnect) -> None:
        await self._until_available(lambda: self._publisher.disconnect(order))
        self._registered.append(entry)

    async def _until_available(self, ask: Callable[[], Awaitable[object]]) -> None:
        """Again for ever: the entries stay pending meanwhile, and both may be asked for twice."""
        attempt = 0
        while True:
            try:
                await ask()
                return
            except Unavailable as error:
                if not attempt:
                    logger.warning("publications of redisx wait", extra={"reason": str(error)})
                await self._retrying.pause(self._retrying.wait(attempt))
                attempt += 1

    async def _acknowledge(self) -> None:
        """Everything that is registered: not to be read again by anybody, and gone. Both or none."""
        if not self._registered:
            return
        async with self._redis.pipeline(transaction=True) as both:
            both.xack(self._stream, self._group, *self._registered)
            both.xdel(self._stream, *self._registered)
            await both.execute()
        self._registered = []

    # --- consumers ----------------------------------------------------------------------------------------------------

    async def _tidy(self) -> None:
        for other in await self._redis.xinfo_consumers(self._stream, self._group):
            if other["idle"] > 1000 * FORGOTTEN_SECONDS and other["name"] != self._consumer.encode():
                await self._remove(other["name"])

    async def _remove(self, consumer: str | bytes) -> None:
        """Unless something is pending for it."""
        await self._redis.eval(_LEAVE, 1, self._stream, self._group, consumer)
