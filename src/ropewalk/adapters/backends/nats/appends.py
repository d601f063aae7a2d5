"""Registers publications: in each shard one group is on its way, and whatever comes meanwhile forms the next one.

Invariant: what is written depends on the sequence of the last message of each stream, uid and producer in it. So of any number
of nodes one is first, and the others plan anew.
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
    Line,
    Marker,
    Memory,
    PendingAppend,
    ShardPlan,
    check_partition_keys,
)
from ropewalk.adapters.backends.nats.shard import NO_TIP, JetShard, StreamEnd
from ropewalk.core.backoff import Backoff
from ropewalk.model.errors import PartitionChanged, RopewalkError, TooLarge, Unanswered, Unavailable
from ropewalk.model.messages import Publication, Receipt
from ropewalk.ports import Clock

MAX_WAITING = 100_000
"""Publications that may wait in one shard: beyond it publishers are told to come back."""

MAX_GROUP = 200
"""Publications in one group, unless one append alone has more."""

MAX_WRITES = jets.MAX_BATCH - 10
"""Messages that the publications of one append may become: an atomic batch of NATS has a limit."""

AROUND_RUN = 1024
"""Bytes of a message that a run cannot have: NATS counts its headers too, and a stream may have a partition key already that
its publications do not name."""

REMEMBERED_PRODUCERS = 10_000
BETWEEN_ATTEMPTS = Backoff(0.002, 0.5)

Forget = Callable[[str], float]


class Lane:
    """The appends of one shard."""

    def __init__(self, shard: JetShard, clock: Clock, dedup_ttl: float, forget: Forget, patience: float) -> None:
        self.shard = shard
        self._patience = patience
        self._clock = clock
        self._dedup_ttl = dedup_ttl
        self._forget = forget
        self._waiting: list[PendingAppend] = []
        self._count = 0
        self._writing: asyncio.Task[None] | None = None
        self._lives = 0
        self._uids: dict[tuple[str, str], Known] = {}  # those of the group under way that somebody has registered
        self._producers: OrderedDict[str, tuple[int, Line]] = OrderedDict()

    def enter(self, append: PendingAppend) -> None:
        # A batch larger than the bound is let in alone: refused now it would be refused for ever.
        if self._waiting and self._count + len(append.publications) > MAX_WAITING:
            raise Unavailable(f"{self._count} publications wait for NATS already")
        self._waiting.append(append)
        self._count += len(append.publications)
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._write())

    async def settle(self) -> None:
        if self._writing is not None:
            await asyncio.wait([self._writing])

    async def tip(self, stream: str) -> StreamEnd:
        """Of a stream that is not forgotten yet."""
        tip = self.shard.tips.get(stream) or await self.shard.load_tip(stream)
        return tip if tip.timestamp + self._forget(stream) > self._clock() else NO_TIP

    async def _write(self) -> None:
        try:
            while self._waiting:
                group = self._next_group()
                self._uids.clear()
                while len(self._producers) > REMEMBERED_PRODUCERS:
                    self._producers.popitem(last=False)
                deadline = asyncio.get_running_loop().time() + self._patience
                await self._commit_or_fail(group)
                if any(append.unavailable for append in group):
                    self._fail_waiting(deadline)
        finally:
            self._writing = None

    async def _commit_or_fail(self, group: list[PendingAppend]) -> None:
        """The task goes on for those who come after; each of these gets the reason."""
        seconds = self._patience + self.shard.link.timeout  # the last attempt may begin when the patience ends
        try:
            async with asyncio.timeout(seconds):
                await self._commit(group)
        except TimeoutError:
            for append in group:
                append.fail(Unanswered(f"NATS gave no answer within {seconds:g} s"))
        except Exception as error:
            for append in group:
                append.fail(error)

    def _fail_waiting(self, deadline: float) -> None:
        """After a group that NATS did not register by its deadline: the appends that entered before the deadline have waited
        about as long."""
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
            if taken and (count > MAX_GROUP or size > self.shard.link.most_bytes):
                break
            taken += 1
        group, self._waiting = self._waiting[:taken], self._waiting[taken:]
        self._count -= sum(len(append.publications) for append in group)
        return group

    async def _commit(self, group: list[PendingAppend]) -> None:
        deadline = asyncio.get_running_loop().time() + self._patience
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
        if self._lives != self.shard.lives:
            self._lives = self.shard.lives
            self._producers.clear()
        await self._learn(group)
        plan = ShardPlan(self.shard, Memory(self._uids, self._producers), self._clock(), self._dedup_ttl, self._forget)
        for append in group:
            try:
                plan.add(append)
            except PartitionChanged as error:  # the others of the group have nothing to do with it
                append.fail(error)
        return plan

    async def _learn(self, group: Iterable[PendingAppend]) -> None:
        """What is not known yet of the streams and producers of a group."""
        streams = {stream for append in group for stream in append.streams if stream not in self.shard.tips}
        producers = {item.producer for append in group for item in append.publications if item.producer}
        await asyncio.gather(
            *(self.shard.load_tip(stream) for stream in streams),
            *(self._load_producer(producer) for producer in producers if producer not in self._producers),
        )

    async def _load_producer(self, producer: str) -> None:
        stored = await self.shard.link.last(self.shard.jet, self.shard.names.producer(producer))
        line = Line() if stored is None else msgspec.msgpack.decode(stored.data, type=Line)
        self._remember_producer(producer, (0 if stored is None else stored.seq, line))

    def _remember_producer(self, producer: str, known: tuple[int, Line]) -> None:
        self._producers[producer] = known
        self._producers.move_to_end(producer)

    async def _load_uid(self, key: tuple[str, str]) -> None:
        stored = await self.shard.link.last(self.shard.jet, self.shard.names.uid(*key))
        known = (0, None) if stored is None else (stored.seq, msgspec.msgpack.decode(stored.data, type=Marker))
        self._uids[key] = known

    # --- one piece ----------------------------------------------------------------------------------------------------

    async def _store(self, piece: AppendPiece, deadline: float) -> list[PendingAppend]:
        """The appends that have to be planned anew."""
        if not piece.writes:  # nothing but repetitions
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
        """It was sent, and may be stored or not, or may be yet. So it is looked for, and the very same is sent again: of the
        two only one can be stored."""
        lives = self.shard.lives
        while await self._may_try_again(deadline):
            try:
                await self.shard.verify()
                if self.shard.lives != lives:
                    break  # what NATS had is lost, and this with it or not
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
        """It was not heard or not answered: there may be no leader, or the shard has another generation by now."""
        if asyncio.get_running_loop().time() > deadline:
            return False
        self.shard.doubt()
        await asyncio.sleep(BETWEEN_ATTEMPTS.cap * random())
        return True

    async def _find(self, piece: AppendPiece) -> int:
        """The sequence under which it is stored, 0 if it was not found."""
        stream, draft = list(piece.drafts.items())[-1]
        stored = await self._after(draft.tip.sequence, stream)
        return stored.seq if stored is not None and runs.decode(stored.data).id == draft.id else 0

    async def _after(self, sequence: int, stream: str) -> Stored | None:
        return await self.shard.link.following(self.shard.jet, sequence + 1, self.shard.subject(stream))

    async def _overtaken(self, piece: AppendPiece) -> bool:
        """Whether something else stands where this would, so that it never will be stored. If there is neither this nor
        something else, a server has answered that was paused and does not know yet that another one leads."""
        for stream, draft in piece.drafts.items():
            stored = await self._after(draft.tip.sequence, stream)
            if stored is not None and draft.is_displaced_by(runs.decode(stored.data)):
                return True
        links, names, jet = self.shard.link, self.shard.names, self.shard.jet
        for key, marker in piece.uids.items():
            stored = await links.last(jet, names.uid(*key))
            if stored is not None and stored.seq != self._uids.get(key, (0, None))[0] and not _is(stored, marker):
                return True
        for producer, line in piece.producers.items():
            stored = await links.last(jet, names.producer(producer))
            if stored is not None and stored.seq != self._producers[producer][0] and not _is(stored, line):
                return True
        return False

    async def _refresh(self, piece: AppendPiece) -> None:
        """Somebody else was faster: learn what there is now."""
        for producer in piece.producers:
            del self._producers[producer]
        for stream in piece.drafts:
            self.shard.tips.pop(stream, None)
        tips = await asyncio.gather(*map(self.shard.load_tip, piece.drafts), *map(self._load_uid, piece.uids))
        before = [draft.tip.sequence for draft in piece.drafts.values()]
        if any(tip is not None and tip.sequence < known for tip, known in zip(tips, before, strict=False)):
            self.shard.doubt()  # what this node knew is gone

    def _done(self, piece: AppendPiece, sequence: int = 0) -> list[PendingAppend]:
        for stream, tip in piece.tips(sequence).items():
            self.shard.remember(stream, tip)
        if piece.drafts:
            self.shard.saw(sequence, piece.last_id)
        first = sequence - len(piece.drafts) - len(piece.producers) + 1
        for number, (producer, line) in enumerate(piece.producers.items(), first):
            self._remember_producer(producer, (number, line))
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


def _is(stored: Stored, record: Marker | Line) -> bool:
    return stored.data == msgspec.msgpack.encode(record)


class Appends:
    """Divides appends among the shards."""

    def __init__(
        self, link: NatsLink, lane_of: Callable[[str], Lane], pass_on: Callable[[Sequence[Publication]], None]
    ) -> None:
        self._link = link
        self._lane_of = lane_of
        self._pass_on = pass_on

    async def append(self, publications: Sequence[Publication]) -> list[Receipt]:
        if len(publications) == 1:
            return await self._register(self._lane_of(publications[0].stream), publications)
        batches = list(_divided(publications, self._link.most_bytes))
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
            parts.setdefault(self._lane_of(publication.stream), []).append(index)
        if len(parts) == 1:
            return await self._register(next(iter(parts)), publications)
        await self._check(publications)
        answers = await asyncio.gather(
            *(self._register(lane, [publications[index] for index in indexes]) for lane, indexes in parts.items()),
            return_exceptions=True,
        )
        receipts = {
            index: receipt
            for indexes, answer in zip(parts.values(), _whole(answers), strict=True)
            for index, receipt in zip(indexes, answer, strict=True)
        }
        return [receipts[index] for index in range(len(publications))]

    async def _register(self, lane: Lane, publications: Sequence[Publication]) -> list[Receipt]:
        append = PendingAppend(publications)
        if append.size > self._link.most_bytes:
            self._check_sizes(publications)
        if not append.streams:
            self._pass_on(publications)
            return [Receipt(publication.stream, "", 0) for publication in publications]
        lane.enter(append)
        receipts = await append.answer
        if append.loose:
            self._pass_on(append.loose)
        return receipts

    def _check_sizes(self, publications: Sequence[Publication]) -> None:
        """What fits into no message of NATS is refused before anything of its batch is registered. Raises `TooLarge`."""
        plenty, room = self._link.most_bytes, self._link.max_payload - AROUND_RUN
        for publication in publications:
            if runs.size_of(publication) > plenty and (size := len(runs.alone(publication))) > room:
                raise TooLarge(f"the publication takes {size} bytes, and a message of NATS has room for {room} (max_payload)")

    async def _check(self, publications: Sequence[Publication]) -> None:
        """Shards do not wait for each other, so what can be refused is refused before any of them begins."""
        if not any(publication.partition_key for publication in publications):
            return
        streams = {publication.stream for publication in publications if not publication.transient}
        tips = dict(zip(streams, await asyncio.gather(*(self._lane_of(stream).tip(stream) for stream in streams)), strict=True))
        check_partition_keys(publications, lambda stream: tips.get(stream, NO_TIP), {})


def _divided(publications: Sequence[Publication], most_bytes: int) -> Iterator[Sequence[Publication]]:
    """In order, and so that each part fits into one message of NATS and its keys into one atomic batch."""
    begin = size = 0
    subjects: set[tuple[str, ...]] = set()
    for index, publication in enumerate(publications):
        added = runs.size_of(publication)
        if index > begin and (size + added > most_bytes or len(subjects) > MAX_WRITES):
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


def _whole(answers: Sequence[list[Receipt] | BaseException]) -> list[list[Receipt]]:
    """What one shard has registered stays, so that an append that failed in another has happened in part."""
    errors = [answer for answer in answers if isinstance(answer, BaseException)]
    if not errors:
        return [answer for answer in answers if not isinstance(answer, BaseException)]
    if len(errors) < len(answers) and all(type(error) is Unavailable for error in errors):
        raise Unanswered(f"a part of the batch is not registered: {errors[0]}") from errors[0]
    raise next((error for error in errors if not isinstance(error, Unavailable)), errors[0])
