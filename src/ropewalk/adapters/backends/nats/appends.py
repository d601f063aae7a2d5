"""Registers publications. Each shard writes one group at a time; appends that arrive meanwhile form the next group.

Invariant: a write is conditional on the last sequence of each stream, uid and producer in it. So of several nodes one succeeds,
and the others plan again.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from random import random

import msgspec

from ropewalk.adapters.backends.nats import jets, runs
from ropewalk.adapters.backends.nats.link import NatsLink, Stored
from ropewalk.adapters.backends.nats.plan import (
    AppendPiece,
    Known,
    KnownKeys,
    Marker,
    PendingAppend,
    ProducerState,
    ShardPlan,
    check_partition_keys,
)
from ropewalk.adapters.backends.nats.shard import NO_TIP, JetShard, StreamEnd
from ropewalk.core.backoff import Backoff
from ropewalk.model.errors import PartitionChanged, RopewalkError, TooLarge, Unanswered, Unavailable
from ropewalk.model.messages import Publication, Receipt
from ropewalk.ports import Clock

MAX_WAITING = 100_000
"""Pending publications per shard. Above it appends raise `Unavailable`."""

MAX_GROUP = 200
"""Publications in one group. A single append may have more."""

MAX_WRITES = jets.MAX_BATCH - 10
"""JetStream messages of one append, below the limit of an atomic batch."""

RUN_OVERHEAD_BYTES = 1024
"""Reserved in a message for its headers, and for a partition key of the stream that its publications do not have."""

REMEMBERED_PRODUCERS = 10_000
BETWEEN_ATTEMPTS = Backoff(0.002, 0.5)

Forget = Callable[[str], float]


class Lane:
    """The appends of one shard."""

    def __init__(self, shard: JetShard, clock: Clock, dedup_ttl: float, forget: Forget, retry_seconds: float) -> None:
        self.shard = shard
        self._retry_seconds = retry_seconds
        self._clock = clock
        self._dedup_ttl = dedup_ttl
        self._forget = forget
        self._waiting: list[PendingAppend] = []
        self._count = 0
        self._writing: asyncio.Task[None] | None = None
        self._incarnation = 0
        self._uids: dict[tuple[str, str], Known] = {}  # registered uids of the current group
        self._producers: OrderedDict[str, tuple[int, ProducerState]] = OrderedDict()

    def add(self, append: PendingAppend) -> None:
        # A batch above the limit is accepted if nothing is pending; otherwise it could never be registered.
        if self._waiting and self._count + len(append.publications) > MAX_WAITING:
            raise Unavailable(f"{self._count} publications are already pending for NATS")
        self._waiting.append(append)
        self._count += len(append.publications)
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._write())

    async def drain(self) -> None:
        if self._writing is not None:
            await asyncio.wait([self._writing])

    async def tip(self, stream: str) -> StreamEnd:
        """The tip of a stream; none if the stream has expired."""
        tip = self.shard.tips.get(stream) or await self.shard.load_tip(stream)
        return tip if tip.timestamp + self._forget(stream) > self._clock() else NO_TIP

    async def _write(self) -> None:
        try:
            while self._waiting:
                group = self._next_group()
                self._uids.clear()
                while len(self._producers) > REMEMBERED_PRODUCERS:
                    self._producers.popitem(last=False)
                # An append that has waited for a failing group has less time left, so that it fails as early as the others.
                deadline = max(asyncio.get_running_loop().time(), group[0].entered + self._retry_seconds)
                await self._commit_or_fail(group, deadline)
                if any(append.unavailable for append in group):
                    self._fail_waiting(deadline)
        finally:
            self._writing = None

    async def _commit_or_fail(self, group: list[PendingAppend], deadline: float) -> None:
        """An error fails the appends of this group only; the task continues with the next group."""
        timeout = self.shard.link.timeout
        try:
            async with asyncio.timeout_at(deadline + timeout):  # the last attempt may begin at the deadline
                await self._commit(group, deadline)
        except TimeoutError:
            for append in group:
                append.fail(Unanswered(f"NATS gave no answer within {self._retry_seconds + timeout:g} s"))
        except Exception as error:
            for append in group:
                append.fail(error)

    def _fail_waiting(self, deadline: float) -> None:
        """If a group missed its deadline, also fail the appends that were pending at that time."""
        if asyncio.get_running_loop().time() < deadline:
            return
        late = [append for append in self._waiting if append.entered < deadline]
        self._waiting = self._waiting[len(late) :]
        self._count = sum(len(append.publications) for append in self._waiting)
        for append in late:
            append.fail(Unavailable("NATS does not answer"))

    def _next_group(self) -> list[PendingAppend]:
        count = size = taken = 0
        for append in self._waiting:
            count += len(append.publications)
            size += append.size
            if taken and (count > MAX_GROUP or size > self.shard.link.max_batch_bytes):
                break
            taken += 1
        group, self._waiting = self._waiting[:taken], self._waiting[taken:]
        self._count -= sum(len(append.publications) for append in group)
        return group

    async def _commit(self, group: list[PendingAppend], deadline: float) -> None:
        failures = 0
        while group:
            try:
                plan = await self._plan(group)
                left = await asyncio.gather(*(self._store(piece, deadline) for piece in plan.pieces()))
                group = [append for appends in left for append in appends]
            except Unavailable:
                if not self.shard.link.connected or asyncio.get_running_loop().time() > deadline:
                    raise
            failures += 1
            if group:
                await asyncio.sleep(BETWEEN_ATTEMPTS.delay(failures, random))

    async def _plan(self, group: Iterable[PendingAppend]) -> ShardPlan:
        """Raises `Unavailable`."""
        await self.shard.verify()
        if self._incarnation != self.shard.incarnation:
            self._incarnation = self.shard.incarnation
            self._producers.clear()
        await self._load_missing(group)
        plan = ShardPlan(self.shard, KnownKeys(self._uids, self._producers), self._clock(), self._dedup_ttl, self._forget)
        for append in group:
            try:
                plan.add(append)
            except PartitionChanged as error:  # the rest of the group is not affected
                append.fail(error)
        return plan

    async def _load_missing(self, group: Iterable[PendingAppend]) -> None:
        """Load the tips and producers of a group that are not cached."""
        streams = {stream for append in group for stream in append.streams if stream not in self.shard.tips}
        producers = {item.producer for append in group for item in append.publications if item.producer}
        await asyncio.gather(
            *(self.shard.load_tip(stream) for stream in streams),
            *(self._load_producer(producer) for producer in producers if producer not in self._producers),
        )

    async def _load_producer(self, producer: str) -> None:
        stored = await self.shard.link.last(self.shard.jet, self.shard.names.producer(producer))
        state = ProducerState() if stored is None else msgspec.msgpack.decode(stored.data, type=ProducerState)
        self._remember_producer(producer, (0 if stored is None else stored.seq, state))

    def _remember_producer(self, producer: str, known: tuple[int, ProducerState]) -> None:
        self._producers[producer] = known
        self._producers.move_to_end(producer)

    async def _load_uid(self, key: tuple[str, str]) -> None:
        stored = await self.shard.link.last(self.shard.jet, self.shard.names.uid(*key))
        known = (0, None) if stored is None else (stored.seq, msgspec.msgpack.decode(stored.data, type=Marker))
        self._uids[key] = known

    # --- one piece ----------------------------------------------------------------------------------------------------

    async def _store(self, piece: AppendPiece, deadline: float) -> list[PendingAppend]:
        """Returns the appends that must be planned again."""
        if not piece.writes:  # only duplicates
            return self._done(piece)
        try:
            return self._done(piece, await jets.store(self.shard.link, piece.writes))
        except jets.WriteConflict:
            await self._refresh(piece)
        except Unanswered as error:
            return await self._resolve(piece, deadline, error)
        except Unavailable as error:
            if not self.shard.link.connected or not await self._may_try_again(deadline):
                return self._fail(piece, error)
        except RopewalkError as error:
            return self._fail(piece, error)
        return list(piece.appends)

    async def _resolve(self, piece: AppendPiece, deadline: float, unanswered: Unanswered) -> list[PendingAppend]:
        """The write was sent and may be stored, now or later. Look for it, and send the identical write again: only one of the
        two can be stored."""
        incarnation = self.shard.incarnation
        while await self._may_try_again(deadline):
            try:
                await self.shard.verify()
                if self.shard.incarnation != incarnation:
                    break  # NATS has lost messages, maybe this one too
                return self._done(piece, await self._find(piece) or await jets.store(self.shard.link, piece.writes))
            except jets.WriteConflict:
                with suppress(Unavailable):
                    if await self._overtaken(piece):
                        await self._refresh(piece)
                        return list(piece.appends)
            except Unavailable:
                continue
        return self._fail(piece, unanswered)

    async def _may_try_again(self, deadline: float) -> bool:
        """Wait before a retry. There may be no leader, or the shard may have another generation."""
        if asyncio.get_running_loop().time() > deadline:
            return False
        self.shard.invalidate()
        await asyncio.sleep(BETWEEN_ATTEMPTS.cap * random())
        return True

    async def _find(self, piece: AppendPiece) -> int:
        """The sequence of the stored piece, 0 if it was not found."""
        stream, draft = list(piece.drafts.items())[-1]
        stored = await self._after(draft.tip.sequence, stream)
        return stored.seq if stored is not None and runs.decode(stored.data).id == draft.id else 0

    async def _after(self, sequence: int, stream: str) -> Stored | None:
        return await self.shard.link.following(self.shard.jet, sequence + 1, self.shard.subject(stream))

    async def _overtaken(self, piece: AppendPiece) -> bool:
        """Whether other messages have taken its place, so that it will never be stored. If neither is stored, the answer is
        from a paused server that does not know of a new leader yet."""
        for stream, draft in piece.drafts.items():
            stored = await self._after(draft.tip.sequence, stream)
            if stored is not None and draft.is_displaced_by(runs.decode(stored.data)):
                return True
        links, names, jet = self.shard.link, self.shard.names, self.shard.jet
        for key, marker in piece.uids.items():
            stored = await links.last(jet, names.uid(*key))
            if stored is not None and stored.seq != self._uids.get(key, (0, None))[0] and not _matches(stored, marker):
                return True
        for producer, state in piece.producers.items():
            stored = await links.last(jet, names.producer(producer))
            if stored is not None and stored.seq != self._producers[producer][0] and not _matches(stored, state):
                return True
        return False

    async def _refresh(self, piece: AppendPiece) -> None:
        """Another node wrote first: load the new state."""
        for producer in piece.producers:
            del self._producers[producer]
        for stream in piece.drafts:
            self.shard.tips.pop(stream, None)
        tips = await asyncio.gather(*map(self.shard.load_tip, piece.drafts), *map(self._load_uid, piece.uids))
        before = [draft.tip.sequence for draft in piece.drafts.values()]
        if any(tip is not None and tip.sequence < known for tip, known in zip(tips, before, strict=False)):
            self.shard.invalidate()  # messages that this node knew are gone

    def _done(self, piece: AppendPiece, sequence: int = 0) -> list[PendingAppend]:
        for stream, tip in piece.tips(sequence).items():
            self.shard.remember(stream, tip)
        if piece.drafts:
            self.shard.saw(sequence, piece.last_id)
        first = sequence - len(piece.drafts) - len(piece.producers) + 1
        for number, (producer, state) in enumerate(piece.producers.items(), first):
            self._remember_producer(producer, (number, state))
        for append in piece.appends:
            append.conclude()
        return []

    def _fail(self, piece: AppendPiece, error: Exception) -> list[PendingAppend]:
        for stream in piece.drafts:
            self.shard.tips.pop(stream, None)
        for producer in piece.producers:
            self._producers.pop(producer, None)
        for append in piece.appends:
            append.fail(error)
        return []


def _matches(stored: Stored, record: Marker | ProducerState) -> bool:
    return stored.data == msgspec.msgpack.encode(record)


class Appends:
    """Distributes appends to the shards."""

    def __init__(
        self, link: NatsLink, lane_for: Callable[[str], Lane], pass_on: Callable[[Sequence[Publication]], None]
    ) -> None:
        self._link = link
        self._lane_for = lane_for
        self._pass_on = pass_on

    async def append(self, publications: Sequence[Publication]) -> list[Receipt]:
        if len(publications) == 1:
            return await self._register(self._lane_for(publications[0].stream), publications)
        batches = list(_split(publications, self._link.max_batch_bytes))
        if len(batches) == 1:
            return await self._append(publications)
        self._check_sizes(publications)
        await self._check(publications)
        receipts: list[Receipt] = []
        for batch in batches:
            try:
                receipts += await self._append(batch)
            except Unavailable as error:
                if receipts:
                    raise Unanswered(f"a part of the batch is not registered: {error}") from error
                raise
        return receipts

    async def _append(self, publications: Sequence[Publication]) -> list[Receipt]:
        parts: dict[Lane, list[int]] = {}
        for index, publication in enumerate(publications):
            parts.setdefault(self._lane_for(publication.stream), []).append(index)
        if len(parts) == 1:
            return await self._register(next(iter(parts)), publications)
        await self._check(publications)
        answers = await asyncio.gather(
            *(self._register(lane, [publications[index] for index in indexes]) for lane, indexes in parts.items()),
            return_exceptions=True,
        )
        receipts = {
            index: receipt
            for indexes, answer in zip(parts.values(), _merge_receipts(answers), strict=True)
            for index, receipt in zip(indexes, answer, strict=True)
        }
        return [receipts[index] for index in range(len(publications))]

    async def _register(self, lane: Lane, publications: Sequence[Publication]) -> list[Receipt]:
        append = PendingAppend(publications)
        if append.size > self._link.max_batch_bytes:
            self._check_sizes(publications)
        if not append.streams:
            self._pass_on(publications)
            return [Receipt(publication.stream, "", 0) for publication in publications]
        lane.add(append)
        receipts = await append.answer
        if append.loose:
            self._pass_on(append.loose)
        return receipts

    def _check_sizes(self, publications: Sequence[Publication]) -> None:
        """Reject a batch with a publication above NATS's message size before any of it is registered. Raises `TooLarge`."""
        safe, room = self._link.max_batch_bytes, self._link.max_payload - RUN_OVERHEAD_BYTES
        for publication in publications:
            if runs.estimate_size(publication) > safe and (size := len(runs.encode_alone(publication))) > room:
                raise TooLarge(f"the publication takes {size} bytes, and a message of NATS has room for {room} (max_payload)")

    async def _check(self, publications: Sequence[Publication]) -> None:
        """Shards write independently, so check the partition keys before any of them begins."""
        if not any(publication.partition_key for publication in publications):
            return
        streams = {publication.stream for publication in publications if not publication.transient}
        tips = dict(
            zip(streams, await asyncio.gather(*(self._lane_for(stream).tip(stream) for stream in streams)), strict=True)
        )
        check_partition_keys(publications, lambda stream: tips.get(stream, NO_TIP), {})


def _split(publications: Sequence[Publication], max_bytes: int) -> Iterator[Sequence[Publication]]:
    """Split in order, so that each part fits into one NATS message and its keys into one atomic batch."""
    begin = size = 0
    subjects: set[tuple[str, ...]] = set()
    for index, publication in enumerate(publications):
        added = runs.estimate_size(publication)
        if index > begin and (size + added > max_bytes or len(subjects) > MAX_WRITES):
            yield publications[begin:index]
            begin, size = index, 0
            subjects.clear()
        size += added
        subjects.add((publication.stream,))
        if publication.uid:
            subjects.add((publication.stream, publication.uid))
        if publication.producer:
            subjects.add(("", "", publication.producer))
    yield publications[begin:]


def _merge_receipts(answers: Sequence[list[Receipt] | BaseException]) -> list[list[Receipt]]:
    """The receipts of all shards. If only some shards failed, the append is registered in part."""
    errors = [answer for answer in answers if isinstance(answer, BaseException)]
    if not errors:
        return [answer for answer in answers if not isinstance(answer, BaseException)]
    if len(errors) < len(answers) and all(type(error) is Unavailable for error in errors):
        raise Unanswered(f"a part of the batch is not registered: {errors[0]}") from errors[0]
    raise next((error for error in errors if not isinstance(error, Unavailable)), errors[0])
