"""The tables that jobs keep: Delta tables written by delta-rs from `foreachBatch`, each batch once.

Invariant: a commit names its query and batch, so that a batch which comes again after a crash changes nothing.
"""

import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake
from deltalake.transaction import AddAction, CommitProperties, RemoveAction, Transaction

from ropewalk.model.errors import UserMistake
from ropewalk.pipeline.archive.layout import named_by_content
from ropewalk.pipeline.archive.log import add_actions, milliseconds, opened
from ropewalk.pipeline.checked import CHANGED, DamagedFile, read_file, unchanged

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NOTE = "ropewalk.note"
_LOOK_BACK = 100  # commits; others than ours may have tended the table


def query_id(checkpoint: str) -> str:
    """The name of the query that owns a checkpoint: it stays through restarts and changes with the checkpoint."""
    told: str = json.loads(Path(checkpoint.removeprefix("file://"), "metadata").read_text())["id"]
    return told


class JobTable:
    """One table with one writer, the query `query`."""

    def __init__(self, root: str, query: str, partition_by: Sequence[str] = ()) -> None:
        self._root = root
        self._query = query
        self._partition_by = list(partition_by)

    def has(self, batch: int) -> bool:
        """Whether this batch was committed. Raises UserMistake where another query has written the table: both would add up."""
        table = opened(self._root)
        if table is None:
            return False
        committed = table.transaction_version(self._query)
        if committed is None:
            raise UserMistake(
                f"the table {self._root} was written by a query with another checkpoint and would count everything twice:"
                " give the job its old checkpoint, or move the table away"
            )
        return committed >= batch

    def replace(self, batch: int, rows: pa.Table, keys: Sequence[str], note: str = "") -> None:
        """Rows of the same keys are replaced, the others added. `keys` that partition the table come first. `note` is for the
        next batch."""
        if opened(self._root) is None:
            self.append(batch, rows, note)
            return
        same = " AND ".join(f"t.{key} = s.{key}" for key in keys)
        merge = DeltaTable(self._root).merge(
            rows, same, source_alias="s", target_alias="t", commit_properties=self._properties(batch, note)
        )
        merge.when_matched_update_all().when_not_matched_insert_all().execute()

    def rewrite(self, batch: int, rows: pa.Table, column: str, note: str = "") -> None:
        """Rows in the place of all that lie between their smallest and greatest value of `column`, a time. Of the table's other
        files, those that hold nothing of this range are not touched."""
        if opened(self._root) is None:
            self.append(batch, rows, note)
            return
        table = DeltaTable(self._root)
        low, high = pc.min_max(rows[column]).as_py().values()
        touched = _touched(table, column, low, high)
        actions: list[AddAction | RemoveAction] = []
        for date, paths in touched.items():
            old = pa.concat_tables([read_file(self._root, path) for path in paths])
            kept = old.filter(pc.or_(pc.less(old[column], low), pc.greater(old[column], high)))
            # A file of its own, so that the next batch, which mostly touches the newest rows, need not write these again.
            actions += self._added(date, kept, column)
            actions += [RemoveAction(path, True, milliseconds(), None, {"date": date}) for path in paths]
        for date in sorted(set(rows["date"].to_pylist())):
            actions += self._added(date, rows.filter(pc.equal(rows["date"], date)).drop_columns("date"), column)
        properties = self._properties(batch, note)
        table.create_write_transaction(actions, "append", table.schema(), self._partition_by, commit_properties=properties)

    def _added(self, date: str, rows: pa.Table, column: str) -> list[AddAction]:
        """A file with these rows, if there are any."""
        if not rows.num_rows:
            return []
        place = Path(self._root) / f"date={date}" / f"part-{uuid4().hex}.parquet"
        place.parent.mkdir(exist_ok=True)
        pq.write_table(rows, place, compression="zstd")
        place = named_by_content(place)
        low, high = (bound.isoformat() for bound in pc.min_max(rows[column]).as_py().values())
        stats = {"numRecords": rows.num_rows, "minValues": {column: low}, "maxValues": {column: high}, "nullCount": {}}
        path, size = f"date={date}/{place.name}", place.stat().st_size
        return [AddAction(path, size, {"date": date}, milliseconds(), True, json.dumps(stats))]

    def overwrite(self, batch: int, rows: pa.Table) -> None:
        """Replace all rows by these, and delete the old files: older versions are not read."""
        Path(self._root).mkdir(parents=True, exist_ok=True)
        write_deltalake(self._root, rows, mode="overwrite", commit_properties=self._properties(batch, ""))
        DeltaTable(self._root).vacuum(0, dry_run=False, enforce_retention_duration=False)

    def read(self) -> pa.Table | None:
        return read_table(self._root)

    def between(self, column: str, low: object, high: object, dates: Sequence[str]) -> pa.Table | None:
        """Rows of these dates whose `column` lies in [low, high]; None if the table does not exist."""
        table = opened(self._root)
        if table is None:
            return None
        filters = [("date", "in", list(dates)), (column, ">=", low), (column, "<=", high)]
        return table.to_pyarrow_table(filters=filters)

    def frame(self, spark: "SparkSession") -> "DataFrame":
        """Everything in the table, for Spark to read. Only what its log names: other files are waste."""
        table = DeltaTable(self._root)
        frame = spark.read.option("basePath", self._root).parquet(*table.file_uris())
        # Spark guesses the types of partition columns.
        return frame.withColumns({name: frame[name].cast("string") for name in self._partition_by})

    def note(self) -> str:
        """What the last batch left with `replace`."""
        table = opened(self._root)
        commits = table.history(_LOOK_BACK) if table else []
        return next((str(commit[NOTE]) for commit in commits if NOTE in commit), "")

    def append(self, batch: int, rows: pa.Table, note: str = "") -> None:
        Path(self._root).mkdir(parents=True, exist_ok=True)
        properties = self._properties(batch, note)
        write_deltalake(self._root, rows, mode="append", partition_by=self._partition_by, commit_properties=properties)

    def _properties(self, batch: int, note: str) -> CommitProperties:
        metadata = {NOTE: note} if note else None
        return CommitProperties(custom_metadata=metadata, app_transactions=[Transaction(self._query, batch)])


class Appending:
    """Takes the batches of a query and appends their rows to a table."""

    def __init__(self, root: str, checkpoint: str) -> None:
        self._root = root
        self._checkpoint = checkpoint

    def take(self, rows: "DataFrame", batch: int) -> None:
        table = JobTable(self._root, query_id(self._checkpoint), ["date"])
        found = rows.toArrow()
        if found.num_rows and not table.has(batch):
            table.append(batch, found)


def _touched(table: DeltaTable, column: str, low: datetime, high: datetime) -> dict[str, list[str]]:
    """By date, the files that hold something between `low` and `high`."""
    files = pa.table(table.get_add_actions(flatten=True))
    found: dict[str, list[str]] = {}
    for path, date, first, last in zip(
        *(files[name].to_pylist() for name in ("path", "partition.date", f"min.{column}", f"max.{column}")), strict=True
    ):
        if first <= high and last >= low:
            found.setdefault(date, []).append(path)
    return found


def job_tables(state_dir: Path) -> list[str]:
    """The tables of all jobs that were ever run from a state directory."""
    return [str(log.parent) for log in sorted((state_dir / "tables").glob("*/_delta_log"))]


def join_files(root: str) -> int:
    """Small files of a job's table are joined, by date. How many there were. Raises DamagedFile if one was changed: after
    joining, that could not be detected."""
    table = opened(root)
    if table is None:
        return 0
    for path in add_actions(table)["path"].to_pylist():
        place = Path(root) / path
        if not place.exists() or not unchanged(place):
            raise DamagedFile(path, CHANGED if place.exists() else "is missing")
    return int(table.optimize.compact()["numFilesRemoved"])


def read_table(root: str) -> pa.Table | None:
    """Everything a job's table holds; None where there is none yet."""
    table = opened(root)
    return None if table is None else table.to_pyarrow_table()
