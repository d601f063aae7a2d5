"""Assigns positions to a group of publications before any of them is committed.

Invariant: a plan changes nothing. Its positions are visible only to the rest of the same group, and it is applied as a whole
or dropped.
"""

from collections.abc import Sequence

from ropewalk.adapters.backends.memory.registrations import Registrations
from ropewalk.adapters.backends.memory.stream_table import StreamTable
from ropewalk.model.journal import Row, RowKind
from ropewalk.model.messages import Position, Publication, Receipt, Registered, transient


class AppendPlan:
    """`add` each append of the group, have `rows` written, then `apply`."""

    def __init__(self, table: StreamTable, registrations: Registrations, now: float) -> None:
        self._table = table
        self._registrations = registrations
        self._now = now
        self._last: dict[str, Registered] = {}  # of each stream, what was planned last
        self._draft = registrations.draft()
        self._fresh: list[tuple[Publication, Registered]] = []

    @property
    def rows(self) -> list[Row]:
        return [row_of(publication, registered) for publication, registered in self._fresh if registered.offset]

    @property
    def messages(self) -> list[Registered]:
        """What is new, transient messages among it, in order."""
        return [registered for _, registered in self._fresh]

    def add(self, publications: Sequence[Publication]) -> list[Receipt]:
        return [self._register(publication) for publication in publications]

    def apply(self) -> None:
        for publication, registered in self._fresh:
            if registered.offset:
                self._table.place(registered)
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
        epoch, tip, newest = self._table.reach(stream) if last is None else (last.epoch, last.offset, last.timestamp)
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


def row_of(publication: Publication, registered: Registered) -> Row:
    return Row(
        RowKind.PUBLISH,
        publication.stream,
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
