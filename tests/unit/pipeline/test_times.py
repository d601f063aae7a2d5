"""The time of a row is found in the journal, in the archive below it, and of rows that are gone by those behind them."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from ropewalk.model.journal import GENERATION_SIZE, ShardSpan
from ropewalk.pipeline.options import Address
from ropewalk.pipeline.times import LAST, RowTimes
from ropewalk.pipeline.wire import JournalRefused, Wire
from tests.archive_writer import START, Scribe, message

BEGAN = round(START.timestamp() * 1_000_000)


class Told(Wire):
    """A journal whose rows are a second apart; rows below `trimmed` are gone."""

    def __init__(self, trimmed: int = 0) -> None:
        super().__init__(Address("http://127.0.0.1:1"))
        self.trimmed = trimmed
        self.questions = 0

    def read(self, shard: int, first: int, end: int, max_bytes: int = 0) -> pa.Table:
        self.questions += 1
        if first < self.trimmed:
            raise JournalRefused(416, "gone")
        positions = range(first, end)
        stamps = pa.array(
            [BEGAN + position % GENERATION_SIZE * 1_000_000 for position in positions], pa.timestamp("us", tz="UTC")
        )
        return pa.table({"position": pa.array(positions, pa.int64()), "timestamp": stamps})


def seconds(times: RowTimes, *positions: int) -> list[float]:
    return [(times.at(0, position) - BEGAN) / 1_000_000 for position in positions]


def times(*own: ShardSpan, wire: Wire | None = None, archive: str = "") -> RowTimes:
    spans: Sequence[ShardSpan] = own
    return RowTimes(wire or Told(), archive, {0: spans})


def test_neighbours_are_asked_for_once() -> None:
    wire = Told()

    assert seconds(times(ShardSpan(0, "e", 0, 1000), wire=wire), 5, 6, 900, 5) == [5, 6, 900, 5]
    assert wire.questions == 1


def test_a_row_that_is_gone_counts_with_the_next_one_that_is_there() -> None:
    found = times(
        ShardSpan(0, "e", 10, 20), ShardSpan(0, "e", 30, 40), ShardSpan(0, "new", GENERATION_SIZE + 50, GENERATION_SIZE + 60)
    )

    assert seconds(found, 3, 15, 25, 45, GENERATION_SIZE + 55) == [10, 15, 30, 50, 55]
    assert found.at(0, GENERATION_SIZE + 60) == LAST


def test_a_row_that_retention_took_meanwhile_is_among_the_oldest() -> None:
    assert times(ShardSpan(0, "e", 0, 20), wire=Told(trimmed=10)).at(0, 5) == 0


def test_below_the_journal_the_archive_knows(tmp_path: Path) -> None:
    scribe = Scribe(tmp_path, shards=1)
    for batch in range(4):
        scribe.archive([message("a", batch * 10 + n + 1, second=batch) for n in range(10)])
    found = times(ShardSpan(0, "e", 60, 80), archive=str(tmp_path))

    assert seconds(found, 5, 35, 50, 70) == [0, 3, 60, 70]
