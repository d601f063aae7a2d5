"""The tables that jobs keep: Delta tables written by delta-rs from `foreachBatch`, each batch once.

The rule it keeps: a commit names its query and batch, so that a batch which comes again after a crash changes nothing.
"""

import datetime
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, write_deltalake
from deltalake.transaction import CommitProperties, Transaction

from ropewalk.model.errors import UserMistake

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


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

    def replace(self, batch: int, rows: pa.Table, keys: Sequence[str]) -> None:
        """Rows of the same keys are replaced, the others added. `keys` that partition the table come first."""
        if opened(self._root) is None:
            self.append(batch, rows)
            return
        same = " AND ".join(f"t.{key} = s.{key}" for key in keys)
        merge = DeltaTable(self._root).merge(
            rows, same, source_alias="s", target_alias="t", commit_properties=self._properties(batch)
        )
        merge.when_matched_update_all().when_not_matched_insert_all().execute()

    def overwrite(self, batch: int, rows: pa.Table) -> None:
        """These rows instead of all that were there; their files go, too, for nobody reads an older version."""
        Path(self._root).mkdir(parents=True, exist_ok=True)
        write_deltalake(self._root, rows, mode="overwrite", commit_properties=self._properties(batch))
        DeltaTable(self._root).vacuum(0, dry_run=False, enforce_retention_duration=False)

    def read(self) -> pa.Table | None:
        return read_table(self._root)

    def between(self, column: str, low: object, high: object, dates: Sequence[str]) -> pa.Table | None:
        """Rows of these dates whose `column` lies in [low, high]; None where there is no table yet."""
        table = opened(self._root)
        if table is None:
            return None
        filters = [("date", "in", list(dates)), (column, ">=", low), (column, "<=", high)]
        return table.to_pyarrow_table(filters=filters)

    def newest(self, column: str) -> datetime.datetime | None:
        """The greatest time in a column, as the commits tell it; None for an empty table."""
        table = opened(self._root)
        if table is None:
            return None
        greatest: datetime.datetime | None = pc.max(pa.table(table.get_add_actions(flatten=True))[f"max.{column}"]).as_py()
        return greatest

    def append(self, batch: int, rows: pa.Table) -> None:
        Path(self._root).mkdir(parents=True, exist_ok=True)
        write_deltalake(
            self._root, rows, mode="append", partition_by=self._partition_by, commit_properties=self._properties(batch)
        )

    def _properties(self, batch: int) -> CommitProperties:
        return CommitProperties(app_transactions=[Transaction(self._query, batch)])


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


def opened(root: str) -> DeltaTable | None:
    return DeltaTable(root) if DeltaTable.is_deltatable(root) else None


def read_table(root: str) -> pa.Table | None:
    """Everything a job's table holds; None where there is none yet."""
    table = opened(root)
    return None if table is None else table.to_pyarrow_table()
