"""The archive sink: tasks write sorted Parquet files, the driver commits them into the Delta log, once for every batch.

Invariant: a file's name is never used again, so that a batch which runs twice overwrites nothing that is committed.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
from msgspec import Struct
from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from ropewalk.model.errors import UserMistake
from ropewalk.pipeline.archive import binding
from ropewalk.pipeline.archive.layout import Written, partitioned, write_file
from ropewalk.pipeline.archive.log import append
from ropewalk.pipeline.archive.reporting import report_archived
from ropewalk.pipeline.journal_client import JournalClient
from ropewalk.pipeline.options import TOKEN_VARIABLE, Address, local_path

_OURS = {"path", "url", "token", "cafile", "txnappid"}
_SPARKS = {"checkpointlocation", "queryname", "outputmode"}


class ArchiveOptions(Struct, frozen=True):
    """The options of one query.

    Args:
        root: the table's directory.
        server: receives the archived positions; None sends no reports.
        app: the writer's name in the table's transactions; "" uses the query's id from its checkpoint.
        checkpoint: the query's checkpoint, "" if Spark does not pass it.
    """

    root: str
    server: Address | None = None
    app: str = ""
    checkpoint: str = ""


def archive_options(given: Mapping[str, str]) -> ArchiveOptions:
    """Raises UserMistake that names the option."""
    options = {name.lower(): value.strip() for name, value in given.items()}
    unknown = sorted(options.keys() - _OURS - _SPARKS)
    if unknown:
        raise UserMistake(
            f"the format ropewalk_archive has no option {unknown[0]!r}; it has path, url, token, caFile, txnAppId"
        )
    if not options.get("path"):
        raise UserMistake("the format ropewalk_archive needs the option path: the directory of the archive's table")
    return ArchiveOptions(
        local_path(options["path"]),
        _server(options),
        options.get("txnappid", ""),
        options.get("checkpointlocation", ""),
    )


def _server(options: Mapping[str, str]) -> Address | None:
    """Without retries: the next batch reports again."""
    if not (url := options.get("url", "").rstrip("/")):
        return None
    token = options.get("token", os.environ.get(TOKEN_VARIABLE, ""))
    return Address(url, token, retries=0, ca=options.get("cafile", ""))


_FILE_NAME = re.compile(r"[\w.-]{1,80}")


@dataclass(frozen=True)
class TaskFiles(WriterCommitMessage):
    """The files that one task wrote, and the id of its query."""

    query: str
    files: tuple[Written, ...]


class ArchiveSource(DataSource):
    """The format `ropewalk_archive`; it can be written to by streaming queries."""

    @classmethod
    def name(cls) -> str:
        return "ropewalk_archive"

    def streamWriter(self, schema: StructType, overwrite: bool) -> "ArchiveWriter":
        if overwrite:
            raise UserMistake("the archive is only ever appended to: use the output mode append")
        return ArchiveWriter(archive_options(self.options))


class ArchiveWriter(DataSourceStreamArrowWriter):
    """It has no `abort`: Spark also calls that for a commit with an unknown result, and such a commit may still name the files.
    Vacuum deletes the files of failed attempts."""

    def __init__(self, options: ArchiveOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskFiles:
        """In a task: all rows of the partition, which the query's maxOffsetsPerTrigger bounds."""
        context = TaskContext.get()
        assert context is not None
        query = context.getLocalProperty("sql.streaming.queryId") or ""
        batch = context.getLocalProperty("streaming.sql.batchId")
        # Vacuum reads from the name whether the batch is committed.
        app = self._options.app if _FILE_NAME.fullmatch(self._options.app) else query
        name = f"{app}-{batch}-{context.partitionId()}-{context.attemptNumber()}-{uuid4().hex[:8]}"
        batches = [each for each in iterator if each.num_rows]
        if not batches:
            return TaskFiles(query, ())
        root = Path(self._options.root)
        parts = partitioned(pa.Table.from_batches(batches))
        return TaskFiles(query, tuple(write_file(root, date, shard, name, rows) for date, shard, rows in parts))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        done = [message for message in messages if isinstance(message, TaskFiles)]
        app = self._options.app or next((message.query for message in done), "")
        files = [file for message in done for file in message.files]
        try:
            if app and not self._append(app, batchId, files):
                _remove(self._options.root, files)
        finally:
            if self._options.server is not None:
                report_archived(JournalClient(self._options.server), self._options.root)

    def _append(self, app: str, batch: int, files: Sequence[Written]) -> bool:
        root, checkpoint = self._options.root, self._options.checkpoint
        try:
            binding.check(root, checkpoint, app, batch)
            # A first batch without rows makes the table too: from then on one that is not there has vanished.
            added = bool(files or batch == 0) and append(root, app, batch, files)
        except UserMistake:  # refused, so that no commit can name them
            _remove(root, files)
            raise
        binding.bind(root, checkpoint)
        return added


def _remove(root: str, files: Sequence[Written]) -> None:
    """Files that no commit names. What cannot be removed now is left to vacuum."""
    for file in files:
        with suppress(OSError):
            (Path(root) / file.path).unlink()
