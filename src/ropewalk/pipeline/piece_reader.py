"""One task's work: a piece of a shard, from the journal, and from the archive below it, as one dense run of positions.

What neither has is a loss, and a loss is said: as an error with its exact range, or as a row that stands for it.
"""

from collections.abc import Iterator

import pyarrow as pa

from ropewalk.model.errors import ServerError, Unavailable
from ropewalk.model.journal import ShardSpan
from ropewalk.pipeline.offsets import Piece
from ropewalk.pipeline.options import SourceOptions
from ropewalk.pipeline.rows import KeptRows, Shaper
from ropewalk.pipeline.tiered import ArchiveTable
from ropewalk.pipeline.wire import JournalRefused, Wire

TRIMMED = "trimmed"
DAMAGED = "damaged"
CUT = "cut"
REPLACED = "replaced"


class DataLoss(ServerError):
    """Positions that a query still had to read are gone."""


class PieceReader:
    """Reads one piece, once."""

    def __init__(self, options: SourceOptions, piece: Piece, kept: KeptRows | None = None) -> None:
        self._options = options
        self._piece = piece
        self._wire = Wire(options.address)
        self._shaper = Shaper(options, piece.shard, kept)

    def batches(self) -> Iterator[pa.RecordBatch]:
        if self._piece.replaced:
            yield from self._lost(self._piece, REPLACED)
            return
        spans, cursor, refused_at = self._spans(), self._piece.first, -1
        while cursor < self._piece.end:
            span = next((span for span in spans if cursor < span.end), None)
            if span is None:
                yield from self._lost(self._part(cursor, self._piece.end), CUT)
                return
            stop = min(self._piece.end, span.end)
            if cursor < span.first:
                stop = min(self._piece.end, span.first)
                # Retention takes from the beginning: what is missing behind rows that are there was damaged.
                yield from self._absent(cursor, stop, TRIMMED if span is spans[0] else DAMAGED)
            elif (table := self._read(cursor, stop)) is not None:
                stop = cursor + table.num_rows
                yield from self._shaper.batches(table)
            elif refused_at == cursor:
                raise Unavailable(f"the journal tells of position {cursor} in shard {self._piece.shard} but does not give it")
            else:
                # Retention may have overtaken us, or damage was found just now; then the journal tells other spans.
                spans, refused_at, stop = self._spans(), cursor, cursor
            cursor = stop

    def _spans(self) -> list[ShardSpan]:
        """What the journal holds of the piece's epoch."""
        return [span for span in self._wire.spans().get(self._piece.shard, ()) if span.epoch == self._piece.epoch]

    def _read(self, first: int, end: int) -> pa.Table | None:
        """The beginning of a range; None if it is not there."""
        try:
            table = self._wire.read(self._piece.shard, first, end)
        except JournalRefused:
            return None
        if not table.num_rows:
            return None
        _check_dense(table, self._piece.shard, first)
        return table

    def _absent(self, first: int, end: int, reason: str) -> Iterator[pa.RecordBatch]:
        """Positions that the journal has not (any more): the archive's, as far as it has them."""
        cursor = first
        for table in self._archived(first, end):
            for run in _dense_runs(table):
                start: int = run.column("position")[0].as_py()
                if start > cursor:
                    yield from self._lost(self._part(cursor, start), reason)
                yield from self._shaper.batches(run)
                cursor = start + run.num_rows
        if cursor < end:
            yield from self._lost(self._part(cursor, end), reason)

    def _archived(self, first: int, end: int) -> Iterator[pa.Table]:
        if self._options.archive:
            yield from ArchiveTable(self._options.archive).rows(self._piece.shard, first, end)

    def _lost(self, piece: Piece, reason: str) -> Iterator[pa.RecordBatch]:
        if self._options.fail_on_data_loss:
            raise DataLoss(loss_text(piece, reason))
        yield self._shaper.gap(piece, reason)

    def _part(self, first: int, end: int) -> Piece:
        return Piece(self._piece.shard, self._piece.epoch, first, end)


def loss_text(piece: Piece, reason: str) -> str:
    where = f"shard {piece.shard}, epoch {piece.epoch!r}"
    go_on = "Set failOnDataLoss to false to go on with a row of event 'gap' in its place"
    match reason:
        case "trimmed":
            what = f"positions {piece.first} to {piece.end - 1} are not in the journal (any more) nor in an archive"
        case "damaged":
            what = (
                f"positions {piece.first} to {piece.end - 1} were damaged in the journal and are in no archive; "
                "`ropewalk journal verify` lists what is lost"
            )
        case "cut":
            what = f"positions {piece.first} to {piece.end - 1} lie beyond its end: lost by damage, or never written"
        case _:
            what = f"the journal began anew and does not know this epoch, which was read up to position {piece.first}"
    return f"{where}: {what}. {go_on}."


def _check_dense(table: pa.Table, shard: int, first: int) -> None:
    """The contract with the server; a batch that breaks it must not reach anyone."""
    positions = table.column("position")
    found: tuple[int, int] = (positions[0].as_py(), positions[-1].as_py())
    if found != (first, first + table.num_rows - 1):
        raise Unavailable(f"the journal answered positions {found} for shard {shard} from position {first}")


def _dense_runs(table: pa.Table) -> Iterator[pa.Table]:
    """Cut where a position is missing. Sorted by position."""
    positions: list[int] = table.column("position").to_pylist()
    start = 0
    for row in range(1, len(positions) + 1):
        if row == len(positions) or positions[row] != positions[row - 1] + 1:
            yield table.slice(start, row - start)
            start = row
