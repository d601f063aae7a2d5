"""The time of a row: from the journal, from the archive, or from the next row if it is gone."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from ropewalk.model.journal import GENERATION_SIZE, ShardSpan
from ropewalk.pipeline.journal_client import JournalClient, JournalRefused
from ropewalk.pipeline.options import Address
from ropewalk.pipeline.tiered import LAST, RowTimes
from tests.archive_writer import START, Scribe, message

START_MICROSECONDS = round(START.timestamp() * 1_000_000)


class FakeJournal(JournalClient):
    """A journal with a row per second. Rows below `trimmed` are gone."""

    def __init__(self, trimmed: int = 0) -> None:
        super().__init__(Address("http://127.0.0.1:1"))
        self.trimmed = trimmed
        self.requests = 0

    def read(self, shard: int, first: int, end: int, max_bytes: int = 0) -> pa.Table:
        self.requests += 1
        if first < self.trimmed:
            raise JournalRefused(416, "gone")
        positions = range(first, end)
        stamps = pa.array(
            [START_MICROSECONDS + position % GENERATION_SIZE * 1_000_000 for position in positions],
            pa.timestamp("us", tz="UTC"),
        )
        return pa.table({"position": pa.array(positions, pa.int64()), "timestamp": stamps})


def seconds(times: RowTimes, *positions: int) -> list[float]:
    return [(times.at(0, position) - START_MICROSECONDS) / 1_000_000 for position in positions]


def times(*own: ShardSpan, client: JournalClient | None = None, archive: str = "") -> RowTimes:
    spans: Sequence[ShardSpan] = own
    return RowTimes(client or FakeJournal(), archive, {0: spans})


def test_neighbouring_rows_are_read_once() -> None:
    client = FakeJournal()

    assert seconds(times(ShardSpan(0, "e", 0, 1000), client=client), 5, 6, 900, 5) == [5, 6, 900, 5]
    assert client.requests == 1


def test_missing_row_has_the_time_of_the_next_row() -> None:
    found = times(
        ShardSpan(0, "e", 10, 20), ShardSpan(0, "e", 30, 40), ShardSpan(0, "new", GENERATION_SIZE + 50, GENERATION_SIZE + 60)
    )

    assert seconds(found, 3, 15, 25, 45, GENERATION_SIZE + 55) == [10, 15, 30, 50, 55]
    assert found.at(0, GENERATION_SIZE + 60) == LAST


def test_row_trimmed_meanwhile_has_time_0() -> None:
    assert times(ShardSpan(0, "e", 0, 20), client=FakeJournal(trimmed=10)).at(0, 5) == 0


def test_times_of_trimmed_rows_are_read_from_the_archive(tmp_path: Path) -> None:
    scribe = Scribe(tmp_path, shards=1)
    for batch in range(4):
        scribe.archive([message("a", batch * 10 + n + 1, second=batch) for n in range(10)])
    found = times(ShardSpan(0, "e", 60, 80), archive=str(tmp_path))

    assert seconds(found, 5, 35, 50, 70) == [0, 3, 60, 70]
