"""The audit finds every row that is removed, duplicated, changed or moved, in the archive and in the journal."""

import json
import re
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
from ropewalk.pipeline.jobs.audit import COMPARED, AuditReport, build_report
from ropewalk.pipeline.journal_client import JournalState
from tests.archive_writer import Scribe, message

ARCHIVED = 40
"""Positions of each generation in the archive. The journal has those from TRIMMED to END."""

TRIMMED = 25
END = 50
SHARD_OF_FAULT = re.compile(r"shard[ =]0*(\d+)\b|^s(\d+)/")


class Log:
    """Shards with two generations each. The older rows are archived, the newer ones in the journal, some of them in both."""

    def __init__(self, spark: SparkSession, home: Path, shards: int = 1) -> None:
        self._spark = spark
        self.root = home / "archive"
        self.context = Context(Place("http://127.0.0.1:1", "", str(self.root), home), lambda: spark)
        older, newer = self._rows(shards, "old", 0), self._rows(shards, "new", 1)
        for batch, (rows, first) in enumerate((rows, first) for rows in (older, newer) for first in range(0, ARCHIVED, 10)):
            name = f"query-{batch}-0-0-{batch:08x}"
            parts = partitioned(pa.concat_tables([table.slice(first, 10) for table in rows]))
            files = [write_file(self.root, date, shard, name, part) for date, shard, part in parts]
            append(str(self.root), "query", batch, files)
        self.journal = {
            shard: pa.concat_tables([older[shard].slice(TRIMMED), newer[shard].slice(TRIMMED)]) for shard in range(shards)
        }
        self.spans = {
            shard: [
                ShardSpan(shard, "a", TRIMMED, END),
                ShardSpan(shard, "b", GENERATION_SIZE + TRIMMED, GENERATION_SIZE + END),
            ]
            for shard in range(shards)
        }

    def _rows(self, shards: int, epoch: str, generation: int) -> list[pa.Table]:
        """By shard."""
        tables = []
        for shard in range(shards):
            scribe = Scribe(self.root, shards=1)
            if generation:
                scribe.begin_generation()
            second = 100 * generation
            rows = scribe.rows([message(f"s{shard}/{n % 3}", n // 3 + 1, epoch, second + n) for n in range(END)])
            at = rows.schema.get_field_index("shard")
            tables.append(rows.set_column(at, rows.schema.field(at), pa.array([shard] * END, pa.int32())))
        return tables

    def audit(self) -> AuditReport:
        journal = pa.concat_tables(self.journal.values())
        rows = self._spark.createDataFrame(journal.select(["shard", "position", *COMPARED]))
        spans = [span for spans in self.spans.values() for span in spans]
        return build_report(self.context, JournalState(1, spans, dict.fromkeys(self.spans, GENERATION_SIZE + ARCHIVED)), rows)

    def file(self, shard: int, number: int) -> Path:
        files = pa.table(DeltaTable(self.root).get_add_actions(True)).sort_by("min.position").to_pylist()
        return Path(self.root, [file["path"] for file in files if int(file["partition.shard"]) == shard][number])


def changed(rows: pa.Table, column: str, at: int, value: object) -> pa.Table:
    index = rows.schema.get_field_index(column)
    cells = rows[column].to_pylist()
    cells[at] = value
    return rows.set_column(index, rows.schema.field(index), pa.array(cells, rows.schema.field(index).type))


# --- the damages ------------------------------------------------------------------------------------------------------


Damage = Callable[[Log, int], None]
"""Changes one shard of a log."""


def delete(condition: str) -> Damage:
    """Another tool deletes rows of the table, with an entry in its log."""

    def damage(log: Log, shard: int) -> None:
        DeltaTable(log.root).delete(f"shard = {shard} AND {condition}")

    return damage


def rewrite(number: int, change: Callable[[pa.Table], pa.Table]) -> Damage:
    """A file of the table has other contents."""

    def damage(log: Log, shard: int) -> None:
        path = log.file(shard, number)
        pq.write_table(change(pq.read_table(path, partitioning=None)), path)

    return damage


def in_journal(change: Callable[[pa.Table], pa.Table]) -> Damage:
    def damage(log: Log, shard: int) -> None:
        log.journal[shard] = change(log.journal[shard])

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


def add_twice(log: Log, shard: int) -> None:
    """The same rows in a second file."""
    rows = pq.read_table(log.file(shard, 2), partitioning=None)
    copy = write_file(log.root, "2026-03-01", shard, "query-99-0-0-00000099", rows)
    added = AddAction(copy.path, copy.size, copy.values, 0, True, copy.stats)
    DeltaTable(log.root).create_write_transaction([added], "append", Schema.from_arrow(TABLE), ["date", "shard"])


def unlink(log: Log, shard: int) -> None:
    log.file(shard, 1).unlink()


def flip_a_byte(log: Log, shard: int) -> None:
    path = log.file(shard, 0)
    data = bytearray(path.read_bytes())
    data[40] ^= 1
    path.write_bytes(data)


def unnamed_generation(log: Log, shard: int) -> None:
    log.spans[shard] = log.spans[shard][:1]
    DeltaTable(log.root).delete(f"shard = {shard} AND position >= {GENERATION_SIZE}")
    log.journal[shard] = without(GENERATION_SIZE, 2 * GENERATION_SIZE)(log.journal[shard])


def damage_page(log: Log, shard: int) -> None:
    """In the values of a file: its positions and statistics can be read."""
    overwrite_page(log.file(shard, 1))


def damage_page_without_digest(log: Log, shard: int) -> None:
    """The file is one that another tool has written."""
    delete("position = 3")(log, shard)
    [path] = [Path(log.root, path) for path in added_last(log)]
    overwrite_page(path)


def overwrite_page(path: Path) -> None:
    column = pq.read_metadata(path).row_group(0).column(pq.read_schema(path).get_field_index("value"))
    data = bytearray(path.read_bytes())
    data[column.data_page_offset + 30 : column.data_page_offset + column.total_compressed_size] = bytes(
        column.total_compressed_size - 30
    )
    path.write_bytes(data)


def added_last(log: Log) -> list[str]:
    table = DeltaTable(log.root)
    actions = [json.loads(line) for line in commit_of(log.root, table.version()).read_text().splitlines()]
    return [action["add"]["path"] for action in actions if "add" in action]


def commit_of(root: Path, version: int) -> Path:
    return root / "_delta_log" / f"{version:020}.json"


def remove_add(log: Log, shard: int) -> None:
    """The last commit of the query no longer names the shard's file."""
    newest = str(log.file(shard, -1).relative_to(log.root))
    for path in (log.root / "_delta_log").glob("*.json"):
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(line for line in lines if '"add"' not in line or newest not in line))


def truncate(log: Log, shard: int) -> None:
    path = log.file(shard, 1)
    path.write_bytes(path.read_bytes()[:-9])


def hole_between(log: Log, shard: int) -> None:
    log.journal[shard] = without(0, ARCHIVED + 5)(log.journal[shard])
    log.spans[shard][0] = ShardSpan(shard, "a", ARCHIVED + 5, END)


def ended_elsewhere(log: Log, shard: int) -> None:
    """The journal has dropped a generation and reports an end after that of the archive."""
    log.spans[shard][0] = ShardSpan(shard, "a", END, END)
    log.journal[shard] = without(0, GENERATION_SIZE)(log.journal[shard])


DAMAGES: dict[str, Damage] = {
    "none": lambda log, shard: None,
    "a row of the archive alone": delete("position = 3"),
    "the first row of all": delete("position = 0"),
    "a range of the archive alone": delete("position >= 5 AND position < 15"),
    "a row that both have, in the archive": delete(f"position = {TRIMMED + 1}"),
    "the older generation in the archive": delete(f"position < {GENERATION_SIZE}"),
    "the newest rows of the archive, which the journal has": delete(f"position >= {GENERATION_SIZE + TRIMMED}"),
    "a file of the last commit, which the journal has": remove_add,
    "the newer generation in the archive": delete(f"position >= {GENERATION_SIZE}"),
    "a generation everywhere": unnamed_generation,
    "the end of a generation that the journal has dropped": ended_elsewhere,
    "a file of the archive": unlink,
    "a truncated file": truncate,
    "a byte in a file": flip_a_byte,
    "a damaged page": damage_page,
    "a damaged page in a file without a digest": damage_page_without_digest,
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
}


JOURNAL_DAMAGES: dict[str, Damage] = {
    "an offset of the journal alone": in_journal(lambda rows: changed(rows, "offset", END - TRIMMED - 1, 99)),
    "positions of the journal": in_journal(shifted),
}
"""Apart from the others, because the second has more faults than a report lists."""


def undetected(spark: SparkSession, home: Path, damages: dict[str, Damage]) -> list[str]:
    """The damages, one per shard, whose shard is in no fault of the report."""
    log = Log(spark, home, len(damages))
    for shard, damage in enumerate(damages.values()):
        damage(log, shard)
    found = [match for fault in log.audit().faults if (match := SHARD_OF_FAULT.search(fault.where))]
    faulty = {int(match[1] or match[2]) for match in found}
    return [name for shard, name in enumerate(damages) if shard not in faulty]


def test_intact_log_has_no_faults(spark: SparkSession, tmp_path: Path) -> None:
    log = Log(spark, tmp_path)
    report = log.audit()
    assert report.faults == ()
    assert report.messages == 2 * END
    assert report.compared == 2 * (ARCHIVED - TRIMMED)
    compact(str(log.root))
    assert log.audit().faults == ()


@pytest.mark.tier("all")
def test_every_damage_is_found(spark: SparkSession, tmp_path: Path) -> None:
    assert undetected(spark, tmp_path / "both", DAMAGES) == ["none"]
    assert undetected(spark, tmp_path / "journal", JOURNAL_DAMAGES) == []


@pytest.mark.tier("all")
def test_damaged_pages_are_named_and_the_rest_is_audited(spark: SparkSession, tmp_path: Path) -> None:
    log = Log(spark, tmp_path, 3)
    damage_page(log, 0)
    damage_page_without_digest(log, 1)
    in_journal(without(END - 2, END - 1))(log, 2)

    faults = log.audit().faults

    files = [match for fault in faults if fault.kind == "file" and (match := SHARD_OF_FAULT.search(fault.where))]
    assert sorted(int(match[1]) for match in files) == [0, 1]
    assert [fault.where for fault in faults if fault.kind == "log" and "shard 2" in fault.where] == ["shard 2 generation 0"]


@pytest.mark.tier("all")
def test_lost_archive_is_found(spark: SparkSession, tmp_path: Path) -> None:
    log = Log(spark, tmp_path)
    shutil.rmtree(log.root)
    assert not log.audit().holds
