"""Group commit: one script registers the pending appends of a shard; appends that arrive meanwhile form the next group.

Invariant: a shard has at most one group in flight, so that publications of a node keep their order. The publications of one
`append` call are never split.
"""

import asyncio
import secrets
from collections import deque
from collections.abc import Sequence
from typing import Any

from msgspec import Struct
from msgspec.msgpack import Decoder, Encoder

from ropewalk.adapters.backends.redis.entries import count_elements, encode_body
from ropewalk.adapters.backends.redis.links import RedisLink
from ropewalk.adapters.backends.redis.shard import Shard
from ropewalk.core.rules import Rulebook
from ropewalk.model.errors import PartitionChanged, Unavailable
from ropewalk.model.limits import StoreLimits
from ropewalk.model.messages import Publication, Receipt

MAX_GROUP = 500
MAX_GROUP_BYTES = 512 * 1024
"""Small enough that a script blocks the server for a few milliseconds at most."""

MAX_WAITING = 20_000
MAX_WAITING_BYTES = 64 * 1024 * 1024
"""Above it appends raise `Unavailable`, which gives publishers backpressure."""

ENTRY_BYTES = 100
"""Overhead of a publication besides its payload."""

TROUBLE_SECONDS = 5.0

_encode = Encoder().encode
_decode = Decoder().decode


class RetentionLimits(Struct, frozen=True):
    """How long messages, streams and uids are kept."""

    rulebook: Rulebook
    limits: StoreLimits
    queue_limit: int

    def of(self, stream: str) -> tuple[int, int, int]:
        """The history limit, its TTL, and the idle TTL of the stream, both in milliseconds."""
        rules = self.rulebook.of(stream)
        return rules.history_limit, round(rules.history_ttl * 1000), round(self.limits.idle_ttl(rules.history_ttl) * 1000)


class _Append(Struct):
    """The publications of one call. `done` is None if the caller does not need the receipts."""

    publications: Sequence[Publication]
    size: int
    done: asyncio.Future[list[Receipt]] | None

    def finish(self, receipts: list[Receipt]) -> None:
        if self.done is not None and not self.done.done():
            self.done.set_result(receipts)

    def fail(self, error: Exception) -> None:
        if self.done is not None and not self.done.done():
            self.done.set_exception(error)


class Appender:
    """The appends of this node to one shard."""

    def __init__(self, shard: Shard, retention: RetentionLimits) -> None:
        self._shard = shard
        self._retention = retention
        self._waiting: deque[_Append] = deque()
        self._count = 0
        self._bytes = 0
        self._link: RedisLink | None = None
        self._sending: asyncio.Task[None] | None = None
        self._trouble = ""
        self._trouble_until = 0.0

    @property
    def trouble(self) -> str:
        """Why appends failed recently, or "". Redis may refuse writes and still answer reads."""
        return self._trouble if asyncio.get_running_loop().time() < self._trouble_until else ""

    def append(self, publications: Sequence[Publication]) -> asyncio.Future[list[Receipt]]:
        """Raises `Unavailable` if too many publications are pending."""
        done: asyncio.Future[list[Receipt]] = asyncio.get_running_loop().create_future()
        if not self._put(publications, done):
            raise Unavailable("too many publications are pending for Redis")
        return done

    def append_unconfirmed(self, publications: Sequence[Publication]) -> bool:
        """Append without receipts. False if the queue is full; then they are dropped."""
        return self._put(publications, None)

    def _put(self, publications: Sequence[Publication], done: asyncio.Future[list[Receipt]] | None) -> bool:
        size = sum(len(publication.payload) for publication in publications) + ENTRY_BYTES * len(publications)
        if self._waiting and (self._count + len(publications) > MAX_WAITING or self._bytes + size > MAX_WAITING_BYTES):
            return False
        self._waiting.append(_Append(publications, size, done))
        self._count += len(publications)
        self._bytes += size
        if self._sending is None:
            self._sending = asyncio.get_running_loop().create_task(self._send())
        return True

    async def stop(self) -> None:
        """Returns once all pending appends are finished."""
        if self._sending is not None:
            await self._sending
        if self._link is not None:
            await self._link.close()

    def _take_group(self) -> list[_Append]:
        group: list[_Append] = []
        count = size = 0
        while self._waiting:
            first = self._waiting[0]
            count, size = count + len(first.publications), size + first.size
            if group and (count > MAX_GROUP or size > MAX_GROUP_BYTES):
                break
            group.append(self._waiting.popleft())
            self._count -= len(first.publications)
            self._bytes -= first.size
        return group

    async def _send(self) -> None:
        await asyncio.sleep(0)  # group the publications of one step of the event loop
        while group := self._take_group():
            try:
                await self._register(group)
            except Exception as error:
                for append in group:
                    append.fail(error)
        self._sending = None

    async def _register(self, group: list[_Append]) -> None:
        keys, arguments, streams = self._call([append.publications for append in group])
        lasting = [each.stream for append in group for each in append.publications if not each.transient]
        noted = self._shard.appends.begin(set(lasting), len(lasting))
        try:
            answer = await self._shard.run(await self._usable_link(), "append", keys, *arguments)
        except Unavailable as error:
            self._trouble = str(error)
            self._trouble_until = asyncio.get_running_loop().time() + TROUBLE_SECONDS
            raise
        self._trouble = ""
        run, generation, counter, epochs, answers = _decode(answer)
        self._shard.appends.answered(noted, counter)
        self._shard.saw(run, generation, counter)
        epoch_of = dict(zip(streams, epochs, strict=True))
        for append, given in zip(group, answers, strict=True):
            if given[0] is False:
                append.fail(PartitionChanged(*given[1:]))
            else:
                append.finish([_receipt(*pair, epoch_of) for pair in zip(append.publications, given, strict=True)])

    async def _usable_link(self) -> RedisLink:
        if self._link is not None and not self._link.usable:
            await self._link.close()
            self._link = None
        if self._link is None:
            self._link = await self._shard.links.open()
        return self._link

    def _call(self, batches: list[Sequence[Publication]]) -> tuple[list[bytes], list[Any], dict[str, int]]:
        key, retention = self._shard.key, self._retention
        streams: dict[str, int] = {}
        producers: dict[str, int] = {}
        bodies: list[bytes] = []
        described = [[_describe(publication, streams, producers, bodies) for publication in batch] for batch in batches]
        named = [(stream, *retention.of(stream), key(f"c:{stream}").decode()) for stream in streams]
        keys = [key(name) for name in ("x", "n", "d", "u", "uo", "j")]
        for stream in streams:
            keys += (key(f"m:{stream}"), key(f"h:{stream}"))
        keys += [key(f"q:{producer}") for producer in producers]
        limits = (round(retention.limits.dedup_ttl * 1000), retention.limits.dedup_limit, retention.queue_limit)
        group = (secrets.token_urlsafe(6), *limits, named, described)
        return keys, [_encode(group), *bodies], streams


def _describe(publication: Publication, streams: dict[str, int], producers: dict[str, int], bodies: list[bytes]) -> Any:
    stream = streams.setdefault(publication.stream, len(streams) + 1)
    bodies.append(encode_body(publication))
    producer = publication.producer
    number = producers.setdefault(producer, len(producers) + 1) if producer else 0
    return (
        stream,
        int(publication.transient),
        publication.uid,
        number,
        f"{publication.sequence:020d}",
        publication.partition_key,
        len(publication.payload),
        count_elements(publication),
    )


def _receipt(publication: Publication, answer: int | str, epochs: dict[str, str]) -> Receipt:
    if isinstance(answer, str):
        epoch, _, offset = answer.rpartition(" ")
        return Receipt(publication.stream, epoch, int(offset), True)
    return Receipt(publication.stream, epochs[publication.stream] if answer else "", answer)
