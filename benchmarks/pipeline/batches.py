"""Whole journals at once: out by our source, into the archive by our sink, and back into streams, against Spark's own.

Each contender has the rows of the same journal; rounds alternate, and every round's rows are counted.
"""

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct

from benchmarks.pipeline.rows import BODY_ROWS, batches, fill, journal_rows, server_url, stream_names
from benchmarks.pipeline.spark import Batches, Spark
from benchmarks.remote import Remote
from benchmarks.report import Bar, Figure, figure
from benchmarks.server import Server
from benchmarks.sizes import Sizes
from ropewalk.pipeline.archive import archived_positions
from ropewalk.pipeline.jobs.archive import ArchiveJobOptions
from ropewalk.pipeline.journal_client import JournalClient, ipc
from ropewalk.pipeline.options import Address

SOURCE_BAR = Bar("ratio", ">=", 0.5)
ARCHIVE_BAR = Bar("ratio", ">=", 0.9)


class Ground(Struct, frozen=True):
    """A journal with all rows, and an output directory."""

    spark: Remote[Spark]
    server: Server
    directory: Path
    sizes: Sizes

    def fresh(self) -> str:
        """A new, empty directory."""
        return tempfile.mkdtemp(dir=self.directory)

    @property
    def options(self) -> dict[str, str]:
        return {"url": server_url(self.server), "startingOffsets": "earliest"}


def journaled(directory: str, sizes: Sizes) -> Server:
    """A server with a journal. Keeps little hot history, which is not measured here."""
    return Server("--data_dir", directory, "--journal_shards", str(sizes.shards), "--history_limit", "1")


@contextmanager
def ground(spark: Remote[Spark], sizes: Sizes) -> Iterator[Ground]:
    # what Spark still writes while it is being ended must not make the end fail
    scratch = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    with scratch as directory, journaled(f"{directory}/data", sizes) as server:
        fill(server, sizes.rows, sizes.row_bytes, sizes.row_streams)
        yield Ground(spark, server, Path(directory), sizes)


def measure_source(on: Ground) -> list[Figure]:
    """Journal to Parquet in one batch, against Spark's own Parquet source on the same rows and columns."""
    copy, files = on.fresh(), on.fresh()
    first = on.spark.call(Spark.from_journal, on.options, "parquet", {"path": copy}, on.fresh())
    for file in Path(copy).glob("*.parquet"):
        # without the log that Spark's sink keeps beside them, they are files like any others
        os.link(file, Path(files) / file.name)
    ours, spark = _alternate(
        on.sizes,
        lambda: on.spark.call(Spark.from_journal, on.options, "parquet", {"path": on.fresh()}, on.fresh()),
        lambda: on.spark.call(Spark.from_files, files, "parquet", {"path": on.fresh()}, on.fresh()),
    )
    title = f"journal to Parquet, {first.rows:,} rows in one batch"
    return [_figure("g", title, ours, spark, on.sizes, SOURCE_BAR)]


def measure_archive(on: Ground) -> list[Figure]:
    """Journal to archive, against the same query into Spark's own Parquet sink; batches as the job makes them."""
    options = {**on.options, "columns": "journal", "maxOffsetsPerTrigger": str(ArchiveJobOptions().max_rows)}
    ours, spark = _alternate(
        on.sizes,
        lambda: _archive(on, options, on.fresh()),
        lambda: on.spark.call(Spark.from_journal, options, "parquet", {"path": on.fresh()}, on.fresh()),
    )
    return [_figure("h", f"journal to archive, {on.sizes.rows:,} rows", ours, spark, on.sizes, ARCHIVE_BAR)]


def _archive(on: Ground, options: dict[str, str], root: str) -> Batches:
    done = on.spark.call(Spark.from_journal, options, "ropewalk_archive", {"path": root}, on.fresh())
    if (found := sum(archived_positions(root).values())) != on.sizes.rows:
        raise AssertionError(f"{on.sizes.rows} rows were archived and the archive has {found} without a hole")
    return done


def measure_sink(on: Ground) -> list[Figure]:
    """Rows into streams in transactions, against a plain loop that posts the same rows without Spark and without them."""
    files, rows, rounds = on.fresh(), on.sizes.sink_rows, on.sizes.spark_unmeasured + on.sizes.spark_rounds
    _write_files(files, on.sizes)
    producers = (f"loop-{number}" for number in count())
    with journaled(on.fresh(), on.sizes) as server:
        ours, loop = _alternate(
            on.sizes,
            lambda: on.spark.call(Spark.from_files, files, "ropewalk", {"url": server_url(server)}, on.fresh()),
            lambda: _loop(server, files, next(producers)),
            rows,
        )
        if (found := journal_rows(server)) != 2 * rows * rounds:
            raise AssertionError(f"the journal has {found} rows after {rounds} rounds of {rows} on either side")
    return [_figure("i", f"DataFrame to streams, {rows:,} rows in one transaction", ours, loop, on.sizes)]


def _write_files(directory: str, sizes: Sizes) -> None:
    """As many rows as go through the sink, in two files: one for each core of the session."""
    table = pa.Table.from_batches(batches(sizes.sink_rows, sizes.row_bytes, stream_names(sizes.row_streams)))
    half = table.num_rows // 2
    for number, part in enumerate((table.slice(0, half), table.slice(half))):
        pq.write_table(part, Path(directory) / f"{number}.parquet")


def _loop(server: Server, directory: str, producer: str) -> Batches:
    client, done, started = JournalClient(Address(server_url(server))), 0, time.monotonic()
    for batch in pq.read_table(directory).to_batches(BODY_ROWS):
        client.produce(producer, done, ipc(batch))
        done += batch.num_rows
    return Batches(done, 1, time.monotonic() - started)


def _alternate(
    sizes: Sizes, ours: Callable[[], Batches], floor: Callable[[], Batches], rows: int = 0
) -> tuple[list[Batches], list[Batches]]:
    """First rounds that are not counted: a JVM is slow with what it does for the first time."""
    found = [(ours(), floor()) for _ in range(sizes.spark_unmeasured + sizes.spark_rounds)][sizes.spark_unmeasured :]
    for round_ in found:
        for done in round_:
            if done.rows != (rows or sizes.rows):
                raise AssertionError(f"a query read {done.rows} of {rows or sizes.rows} rows")
    return [done for done, _ in found], [done for _, done in found]


def _figure(key: str, title: str, ours: list[Batches], floor: list[Batches], sizes: Sizes, bar: Bar | None = None) -> Figure:
    details: dict[str, float] = {"rows": ours[0].rows, "payload": sizes.row_bytes, "batches": ours[0].batches}
    return figure(key, title, "rows/s", [done.rate for done in ours], [done.rate for done in floor], details, bar)
