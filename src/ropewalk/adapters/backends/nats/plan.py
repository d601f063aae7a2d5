"""Plans the positions of a group of appends in one shard, and the messages that would register them.

Invariant: a plan has no effect until it is stored, as a whole or in independent pieces. A write conflict needs a new plan.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from secrets import token_urlsafe

import msgspec
from msgspec import Struct

from ropewalk.adapters.backends.nats import runs
from ropewalk.adapters.backends.nats.jets import JetWrite
from ropewalk.adapters.backends.nats.shard import NO_TIP, JetShard, StreamEnd
from ropewalk.model.errors import PartitionChanged, Unavailable
from ropewalk.model.messages import Position, Publication, Receipt

POSITIONS = 64
"""Positions kept per producer and shard, so that a retry of a recent publication gets its exact position."""

FORGOTTEN = Position("", 0)
"""The position of a publication that was registered too long ago to be kept."""


class Marker(Struct, frozen=True, array_like=True):
    """A registered uid. `until`: its expiry."""

    epoch: str
    offset: int
    until: float


class ProducerState(Struct, frozen=True, array_like=True):
    """The last sequence of a producer in a shard, and the positions of its latest publications."""

    last: int = -1
    positions: tuple[tuple[int, str, int], ...] = ()

    def find(self, sequence: int) -> Position | None:
        if sequence > self.last:
            return None
        return next((Position(epoch, offset) for number, epoch, offset in self.positions if number == sequence), FORGOTTEN)

    def adding(self, sequence: int, position: Position) -> "ProducerState":
        return ProducerState(sequence, (*self.positions, (sequence, position.epoch, position.offset))[-POSITIONS:])


Known = tuple[int, Marker | None]
"""A marker and its JetStream sequence, 0 for none."""


class PendingAppend:
    """An append, or the part of it in one shard. `apart`: it can be stored separately. `loose`: its transient publications to
    streams without other publications; they are in no run."""

    __slots__ = ("answer", "apart", "entered", "loose", "named", "publications", "receipts", "size", "streams")

    def __init__(self, publications: Sequence[Publication]) -> None:
        self.publications = publications
        self.receipts: list[Receipt] = []
        self.loose: Sequence[Publication] = ()
        loop = asyncio.get_running_loop()
        self.entered = loop.time()
        self.answer: asyncio.Future[list[Receipt]] = loop.create_future()
        self.streams: set[str] = set()
        self.size, self.named, keyed = 0, False, False  # `named`: some have a partition key
        for publication in publications:
            self.size += runs.estimate_size(publication)
            if not publication.transient:
                self.streams.add(publication.stream)
                if publication.uid or publication.producer:
                    keyed = True
                if publication.partition_key:
                    self.named = True
        self.apart = not keyed and len(self.streams) == 1

    def conclude(self) -> None:
        if not self.answer.done():  # a publisher may have been cancelled
            self.answer.set_result(self.receipts)

    def fail(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)

    @property
    def unavailable(self) -> bool:
        """Whether it has failed because NATS was unavailable."""
        answer = self.answer
        return answer.done() and not answer.cancelled() and isinstance(answer.exception(), Unavailable)


class _Draft:
    """The next run of one stream."""

    __slots__ = ("count", "epoch", "first", "id", "items", "partition_key", "timestamp", "tip")

    def __init__(self, tip: StreamEnd, current: StreamEnd, now: float, partition_key: str) -> None:
        self.tip = tip
        self.epoch = current.epoch or token_urlsafe(6)
        self.first = current.offset + 1
        self.timestamp = max(now, current.timestamp)
        self.partition_key = partition_key
        self.count = 0
        self.id = token_urlsafe(9)
        self.items: list[runs.Item] = []

    def add(self, publication: Publication) -> Position:
        self.items.append(runs.build_item(publication))
        self.count += 1
        return Position(self.epoch, self.first + self.count - 1)

    def is_displaced_by(self, run: runs.Run) -> bool:
        """Whether `run`, the next stored one of the stream, took its place. A run at a later offset proves nothing: the runs
        before it may be trimmed."""
        return run.id != self.id and (run.first <= self.first if run.epoch == self.epoch else run.first == 1)


class AppendPiece:
    """Messages that are stored together, and the appends they complete."""

    def __init__(self, appends: list[PendingAppend], drafts: Mapping[str, _Draft]) -> None:
        self.appends = appends
        self.drafts = drafts
        self.uids: dict[tuple[str, str], Marker] = {}
        self.producers: dict[str, ProducerState] = {}
        self.writes: list[JetWrite] = []

    def tips(self, last_sequence: int) -> dict[str, StreamEnd]:
        """The new tips. The runs are the last of the writes."""
        begin = last_sequence - len(self.drafts) + 1
        return {
            stream: StreamEnd(sequence, draft.epoch, draft.first + draft.count - 1, draft.timestamp, draft.partition_key)
            for sequence, (stream, draft) in enumerate(self.drafts.items(), begin)
        }

    @property
    def last_id(self) -> str:
        return list(self.drafts.values())[-1].id


class KnownKeys(Struct):
    """The uids and producers of a shard that the current group needs."""

    uids: dict[tuple[str, str], Known]
    producers: dict[str, tuple[int, ProducerState]]


class ShardPlan:
    def __init__(self, shard: JetShard, known: KnownKeys, now: float, dedup_ttl: float, forget: Callable[[str], float]) -> None:
        self._shard = shard
        self._known = known
        self._now = now
        self._dedup_ttl = dedup_ttl
        self._forget = forget
        self._drafts: dict[str, _Draft] = {}
        self._keys: dict[str, str] = {}  # partition keys, as far as this plan needs them
        self._uids: dict[tuple[str, str], Marker] = {}
        self._producers: dict[str, ProducerState] = {}
        self._leading: dict[str, list[Publication]] = {}  # transient publications before the first one with a position
        self._appends: list[PendingAppend] = []

    def current(self, stream: str) -> StreamEnd:
        """The tip of a stream; none if the stream was idle for so long that it has expired."""
        tip = self._shard.tips.get(stream, NO_TIP)
        return tip if tip.timestamp + self._forget(stream) > self._now else NO_TIP

    def add(self, append: PendingAppend) -> None:
        """Raises PartitionChanged; then the plan is unchanged."""
        if append.named:
            self._keys.update(check_partition_keys(append.publications, self.current, self._keys))
        append.receipts = [
            self._pass(publication, append) if publication.transient else self._register(publication)
            for publication in append.publications
        ]
        if self._leading:
            append.loose = [publication for waiting in self._leading.values() for publication in waiting]
            self._leading.clear()
        else:
            append.loose = ()
        self._appends.append(append)

    def _pass(self, publication: Publication, append: PendingAppend) -> Receipt:
        """A transient publication keeps its place in the run, if its append registers anything in the stream."""
        draft = self._drafts.get(publication.stream)
        if draft is None or publication.stream not in append.streams:
            self._leading.setdefault(publication.stream, []).append(publication)
        else:
            draft.items.append(runs.build_item(publication))
        return Receipt(publication.stream, "", 0)

    def _register(self, publication: Publication) -> Receipt:
        stream = publication.stream
        if (publication.uid or publication.producer) and (first := self._first(publication)) is not None:
            return Receipt(stream, first.epoch, first.offset, True)
        position = self._draft(stream).add(publication)
        if publication.uid:
            self._uids[stream, publication.uid] = Marker(position.epoch, position.offset, self._now + self._dedup_ttl)
        if publication.producer:
            state = self._producer_state(publication.producer)
            self._producers[publication.producer] = state.adding(publication.sequence, position)
        return Receipt(stream, position.epoch, position.offset)

    def _first(self, publication: Publication) -> Position | None:
        """The position of an earlier registration."""
        if (
            publication.producer
            and (found := self._producer_state(publication.producer).find(publication.sequence)) is not None
        ):
            return found
        if not publication.uid:
            return None
        key = publication.stream, publication.uid
        marker = self._uids.get(key) or self._known.uids.get(key, (0, None))[1]
        return Position(marker.epoch, marker.offset) if marker is not None and self._now < marker.until else None

    def _producer_state(self, producer: str) -> ProducerState:
        return self._producers.get(producer) or self._known.producers[producer][1]

    def _draft(self, stream: str) -> _Draft:
        draft = self._drafts.get(stream)
        if draft is None:
            tip, current = self._shard.tips.get(stream, NO_TIP), self.current(stream)
            key = self._keys.setdefault(stream, current.partition_key or stream)
            draft = self._drafts[stream] = _Draft(tip, current, self._now, "" if key == stream else key)
            draft.items = [runs.build_item(publication) for publication in self._leading.pop(stream, ())]
        return draft

    # --- writes -------------------------------------------------------------------------------------------------------

    def pieces(self) -> list[AppendPiece]:
        """Appends to several streams or with idempotency keys, and all appends that share a stream with them, form one piece.
        Each other stream is one message."""
        tied = {stream for append in self._appends if not append.apart for stream in append.streams}
        together = AppendPiece([], {stream: draft for stream, draft in self._drafts.items() if stream in tied})
        together.uids, together.producers = self._uids, self._producers
        alone = {stream: AppendPiece([], {stream: draft}) for stream, draft in self._drafts.items() if stream not in tied}
        for append in self._appends:
            piece = alone.get(next(iter(append.streams))) if append.apart else None
            (piece or together).appends.append(append)
        pieces = [piece for piece in (together, *alone.values()) if piece.appends]
        for piece in pieces:
            piece.writes = self._writes(piece)
        return pieces

    def _writes(self, piece: AppendPiece) -> list[JetWrite]:
        names, known = self._shard.names, self._known
        writes = [
            JetWrite(names.uid(*key), msgspec.msgpack.encode(marker), known.uids.get(key, (0, None))[0], self._dedup_ttl)
            for key, marker in piece.uids.items()
        ]
        writes += [
            JetWrite(names.producer(producer), msgspec.msgpack.encode(state), known.producers[producer][0])
            for producer, state in piece.producers.items()
        ]
        for stream, draft in piece.drafts.items():
            body = runs.Run(
                stream,
                draft.epoch,
                draft.first,
                draft.count,
                draft.timestamp,
                draft.partition_key,
                draft.id,
                tuple(draft.items),
            )
            writes.append(JetWrite(self._shard.subject(stream), runs.encode(body), draft.tip.sequence, self._forget(stream)))
        return writes


def check_partition_keys(
    publications: Sequence[Publication], tip: Callable[[str], StreamEnd], given: Mapping[str, str]
) -> dict[str, str]:
    """The partition keys of the streams of an append. Raises PartitionChanged if a publication has a different key than its
    stream."""
    seen: dict[str, str] = {}
    for publication in publications:
        if publication.transient:
            continue
        stream, named = publication.stream, publication.partition_key
        current = tip(stream)
        begun = (current.partition_key or stream) if current.epoch else ""
        kept = seen.get(stream) or given.get(stream) or begun or named or stream
        if named and named != kept:
            raise PartitionChanged(stream, named, kept)
        seen[stream] = kept
    return seen
