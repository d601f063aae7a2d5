"""The audit audited: whatever is taken out of the log, doubled, changed or shifted, wherever it is, the audit finds it."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Schema
from deltalake.transaction import AddAction
from pyspark.sql import SparkSession

from ropewalk.model.journal import GENERATION_SIZE, ShardSpan
from ropewalk.pipeline.archive import compact
from ropewalk.pipeline.archive.layout import TABLE, partitioned, write_file
from ropewalk.pipeline.archive.log import append
from ropewalk.pipeline.context import Context, Place
from ropewalk.pipeline.jobs.audit import report_of
from ropewalk.pipeline.report import AuditReport
from ropewalk.pipeline.transforms.audit import COMPARED
from ropewalk.pipeline.wire import JournalState
from tests.archive_writer import Scribe, message

ARCHIVED = 40
"""Positions of each generation that the archive has; the journal has those from TRIMMED to END."""

TRIMMED = 25
END = 50


class Log:
    """One shard with two generations, the older part archived, the newer part in the journal, some of it in both."""

    def __init__(self, spark: SparkSession, home: Path) -> None:
        self._spark = spark
        self.root = home / "archive"
        self.context = Context(Place("http://127.0.0.1:1", "", str(self.root), home), lambda: spark)
        scribe = Scribe(self.root, shards=1)
        older = scribe.rows([message(f"s{n % 3}", n // 3 + 1, "old", n) for n in range(END)])
        scribe.begin_generation()
        newer = scribe.rows([message(f"s{n % 3}", n // 3 + 1, "new", 100 + n) for n in range(END)])
        for batch, (rows, first) in enumerate((rows, first) for rows in (older, newer) for first in range(0, ARCHIVED, 10)):
            name = f"query-{batch}-0-0-{batch:08x}"
            parts = partitioned(rows.slice(first, 10))
            files = [write_file(self.root, date, shard, name, part) for date, shard, part in parts]
            append(str(self.root), "query", batch, files)
        self.journal = pa.concat_tables([older.slice(TRIMMED), newer.slice(TRIMMED)])
        self.spans = [ShardSpan(0, "a", TRIMMED, END), ShardSpan(0, "b", GENERATION_SIZE + TRIMMED, GENERATION_SIZE + END)]

    def audit(self) -> AuditReport:
        rows = self._spark.createDataFrame(self.journal.select(["shard", "position", *COMPARED]))
        return report_of(self.context, JournalState(1, self.spans, {0: GENERATION_SIZE + ARCHIVED}), rows)

    def file(self, number: int) -> Path:
        files = pa.table(DeltaTable(self.root).get_add_actions(True)).sort_by("min.position")["path"].to_pylist()
        return Path(self.root, files[number])


def changed(rows: pa.Table, column: str, at: int, value: object) -> pa.Table:
    index = rows.schema.get_field_index(column)
    cells = rows[column].to_pylist()
    cells[at] = value
    return rows.set_column(index, rows.schema.field(index), pa.array(cells, rows.schema.field(index).type))


# --- the damages ------------------------------------------------------------------------------------------------------


def delete(condition: str) -> Callable[[Log], None]:
    """Rows leave the table as another tool would delete them, its log and all."""

    def damage(log: Log) -> None:
        DeltaTable(log.root).delete(condition)

    return damage


def rewrite(number: int, change: Callable[[pa.Table], pa.Table]) -> Callable[[Log], None]:
    """A file of the table holds something else."""

    def damage(log: Log) -> None:
        path = log.file(number)
        pq.write_table(change(pq.read_table(path, partitioning=None)), path)

    return damage


def in_journal(change: Callable[[pa.Table], pa.Table]) -> Callable[[Log], None]:
    def damage(log: Log) -> None:
        log.journal = change(log.journal)

    return damage


def without(first: int, end: int) -> Callable[[pa.Table], pa.Table]:
    def change(rows: pa.Table) -> pa.Table:
        inside = pc.and_(pc.greater_equal(rows["position"], first), pc.less(rows["position"], end))
        return rows.filter(pc.invert(inside))

    return change


def doubled(rows: pa.Table) -> pa.Table:
    return pa.concat_tables([rows, rows.slice(3, 1)])


def shifted(rows: pa.Table) -> pa.Table:
    at = rows.schema.get_field_index("position")
    return rows.set_column(at, rows.schema.field(at), pc.add(rows["position"], 1))


def add_twice(log: Log) -> None:
    """The same rows come in under another name."""
    rows = pq.read_table(log.file(2), partitioning=None)
    copy = write_file(log.root, "2026-03-01", 0, "query-99-0-0-00000099", rows)
    added = AddAction(copy.path, copy.size, copy.values, 0, True, copy.stats)
    DeltaTable(log.root).create_write_transaction([added], "append", Schema.from_arrow(TABLE), ["date", "shard"])


def archive_gone(log: Log) -> None:
    shutil.rmtree(log.root)


def flip_a_byte(log: Log) -> None:
    path = log.file(0)
    data = bytearray(path.read_bytes())
    data[40] ^= 1
    path.write_bytes(data)


def unnamed_generation(log: Log) -> None:
    log.spans = log.spans[:1]
    DeltaTable(log.root).delete(f"position >= {GENERATION_SIZE}")
    log.journal = without(GENERATION_SIZE, 2 * GENERATION_SIZE)(log.journal)


def cut_short(log: Log) -> None:
    path = log.file(1)
    path.write_bytes(path.read_bytes()[:-9])


def hole_between(log: Log) -> None:
    log.journal = without(0, ARCHIVED + 5)(log.journal)
    log.spans[0] = ShardSpan(0, "a", ARCHIVED + 5, END)


def ended_elsewhere(log: Log) -> None:
    """The journal let go of a generation, and tells that it ended further on than the archive has it."""
    log.spans[0] = ShardSpan(0, "a", END, END)
    log.journal = without(0, GENERATION_SIZE)(log.journal)


DAMAGES: dict[str, Callable[[Log], None]] = {
    "a row of the archive alone": delete("position = 3"),
    "the first row of all": delete("position = 0"),
    "a range of the archive alone": delete("position >= 5 AND position < 15"),
    "a row that both have, in the archive": delete(f"position = {TRIMMED + 1}"),
    "the older generation in the archive": delete(f"position < {GENERATION_SIZE}"),
    "the newer generation in the archive": delete(f"position >= {GENERATION_SIZE}"),
    "a generation everywhere": unnamed_generation,
    "the end of a generation that the journal let go": ended_elsewhere,
    "a file of the archive": lambda log: log.file(1).unlink(),
    "a file cut short": cut_short,
    "a byte in a file": flip_a_byte,
    "a file twice": add_twice,
    "a value in the archive alone": rewrite(0, lambda rows: changed(rows, "value", 2, b'"other"')),
    "a stream's name in the archive alone": rewrite(0, lambda rows: changed(rows, "stream", 2, "s9")),
    "a row of a file": rewrite(0, lambda rows: rows.slice(1)),
    "a row twice in a file": rewrite(0, doubled),
    "positions of a file": rewrite(0, shifted),
    "a row of the journal alone": in_journal(without(END - 2, END - 1)),
    "the last row of the journal": in_journal(without(END - 1, END)),
    "a range between archive and journal": hole_between,
    "a generation of the journal": in_journal(without(GENERATION_SIZE, 2 * GENERATION_SIZE)),
    "a row of the journal twice": in_journal(doubled),
    "a value that both have": in_journal(lambda rows: changed(rows, "value", 1, b'"other"')),
    "an offset of the journal alone": in_journal(lambda rows: changed(rows, "offset", END - TRIMMED - 1, 99)),
    "positions of the journal": in_journal(shifted),
    "the whole archive": archive_gone,
}


def test_a_log_that_is_whole_holds(spark: SparkSession, tmp_path: Path) -> None:
    log = Log(spark, tmp_path)
    report = log.audit()
    assert report.faults == ()
    assert report.messages == 2 * END
    assert report.compared == 2 * (ARCHIVED - TRIMMED)
    compact(str(log.root))
    assert log.audit().faults == ()


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_every_damage_is_found(spark: SparkSession, tmp_path: Path, damage: Callable[[Log], None]) -> None:
    log = Log(spark, tmp_path)
    damage(log)
    assert not log.audit().holds
