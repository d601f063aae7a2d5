"""Assigns positions to a group of publications before any of them is committed.

Invariant: a plan changes nothing. Its positions are visible only to the rest of the same group, and it is applied as a whole
or dropped.
"""

from collections.abc import Mapping, Sequence

from ropewalk.adapters.backends.memory.registrations import Registrations
from ropewalk.adapters.backends.memory.stream_table import StreamTable
from ropewalk.model.errors import PartitionChanged
from ropewalk.model.journal import Row, RowKind
from ropewalk.model.messages import Position, Publication, Receipt, Registered, transient


class AppendPlan:
    """`add` each append of the group, have `rows` written, then `apply`."""

    def __init__(self, table: StreamTable, registrations: Registrations, now: float) -> None:
        self._table = table
        self._registrations = registrations
        self._now = now
        self._last: dict[str, Registered] = {}  # of each stream, what was planned last
        self._partition_keys: dict[str, str] = {}  # of each stream in it
        self._draft = registrations.draft()
        self._fresh: list[tuple[Publication, Registered]] = []

    @property
    def rows(self) -> list[Row]:
        keys = self._partition_keys
        return [
            row_of(publication, registered, keys[publication.stream])
            for publication, registered in self._fresh
            if registered.offset
        ]

    @property
    def messages(self) -> list[Registered]:
        """What is new, transient messages among it, in order."""
        return [registered for _, registered in self._fresh]

    def add(self, publications: Sequence[Publication]) -> list[Receipt]:
        """Raises PartitionChanged, and then none of them is planned."""
        check_partition_keys(publications, self._table, self._partition_keys)
        return [self._register(publication) for publication in publications]

    def apply(self) -> None:
        for publication, registered in self._fresh:
            if registered.offset:
                self._table.place(registered)
                self._table.assign(registered.stream, self._partition_keys[registered.stream])
                self._registrations.remember(publication, registered, self._now)

    def _register(self, publication: Publication) -> Receipt:
        if publication.transient:
            registered = transient(publication, self._now)
        else:
            named = bool(publication.uid or publication.producer)
            first = self._first(publication) if named else None
            if first is not None:
                return Receipt(publication.stream, first.epoch, first.offset, True)
            registered = self._place(publication)
            if named:
                self._draft.remember(publication, registered, self._now)
        self._fresh.append((publication, registered))
        return Receipt(publication.stream, registered.epoch, registered.offset)

    def _first(self, publication: Publication) -> Position | None:
        registrations, draft, now = self._registrations, self._draft, self._now
        by_sequence = registrations.by_sequence(publication) or draft.by_sequence(publication)
        return by_sequence or registrations.by_uid(publication, now) or draft.by_uid(publication, now)

    def _place(self, publication: Publication) -> Registered:
        stream = publication.stream
        last = self._last.get(stream)
        if last is None:
            epoch, tip, newest = self._table.reach(stream)
            self._partition_keys[stream] = publication.partition_key or self._table.partition_key(stream)
        else:
            epoch, tip, newest = last.epoch, last.offset, last.timestamp
        registered = self._last[stream] = Registered(
            stream,
            publication.payload,
            max(self._now, newest),
            epoch,
            tip + 1,
            publication.exclude_socket,
            publication.broadcast_type,
        )
        return registered


def check_partition_keys(publications: Sequence[Publication], table: StreamTable, planned: Mapping[str, str]) -> None:
    """Raises PartitionChanged unless each stream is given the partition key that it has, or none."""
    for publication in publications:  # hardly any names one, and this is on the way of all
        if publication.partition_key:
            break
    else:
        return
    seen = dict(planned)
    for publication in publications:
        if publication.transient:
            continue
        stream, named = publication.stream, publication.partition_key
        kept = seen.get(stream) or (table.partition_key(stream) if stream in table.logs else named or stream)
        if named and named != kept:
            raise PartitionChanged(stream, named, kept)
        seen[stream] = kept


def row_of(publication: Publication, registered: Registered, partition_key: str) -> Row:
    return Row(
        RowKind.PUBLISH,
        partition_key,
        registered.timestamp,
        publication.stream,
        registered.epoch,
        registered.offset,
        publication.payload,
        publication.uid,
        publication.exclude_socket,
        publication.broadcast_type,
        "",
        "",
        publication.producer,
        publication.sequence,
    )
