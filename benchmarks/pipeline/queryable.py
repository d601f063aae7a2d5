"""From publish to queryable: how long until the archive's log names a message, with the archive query running.

The floor is Spark alone on the same road: a file appears, its own source finds it, its own sink's log names it.
"""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.load.publisher import Publisher
from benchmarks.pipeline.batches import journaled
from benchmarks.pipeline.rows import payloads, server_url
from benchmarks.pipeline.spark import Spark
from benchmarks.remote import Remote
from benchmarks.report import Figure, figure, milliseconds
from benchmarks.sizes import Sizes
from ropewalk.pipeline.archive import archived_positions

TRIGGER = "100 milliseconds"
TIMEOUT = 120.0


def measure_queryable(spark: Remote[Spark], sizes: Sizes) -> list[Figure]:
    """One message after the other, each alone in its batch."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        ours = _ours(spark, Path(directory), sizes)
        floor = _floor(spark, Path(directory), sizes)
    details: dict[str, float] = {"messages": sizes.queryable_messages, "trigger_ms": 100, "worst_ms": max(ours) * 1000}
    title = "publish to queryable in the archive, p50"
    return [figure("j", title, "ms", [milliseconds(ours, 50)], [milliseconds(floor, 50)], details)]


def _ours(spark: Remote[Spark], directory: Path, sizes: Sizes) -> list[float]:
    root = directory / "archive"
    with journaled(str(directory / "data"), sizes) as server:
        publisher = Publisher(server.address, "bench", sizes.row_bytes)
        publisher.publish(1)
        options = {"url": server_url(server), "columns": "journal", "startingOffsets": "earliest"}
        spark.call(
            Spark.keep_running, "ropewalk", options, "ropewalk_archive", {"path": str(root)}, str(directory / "a"), TRIGGER
        )
        found = _latencies(lambda number: publisher.publish(1), root / "_delta_log", sizes)
        spark.call(Spark.stop)
        publisher.close()
    if (rows := sum(archived_positions(str(root)).values())) != publisher.published:
        raise AssertionError(f"{publisher.published} messages were published and the archive has {rows}")
    return found


def _floor(spark: Remote[Spark], directory: Path, sizes: Sizes) -> list[float]:
    arriving, written = directory / "arriving", directory / "written"
    arriving.mkdir()

    def put(number: int) -> float:
        hidden = arriving / f"_{number}"
        pq.write_table(_row(sizes), hidden)
        started = time.monotonic()
        hidden.rename(arriving / f"{number}.parquet")
        return started

    put(-1)
    spark.call(Spark.keep_running, str(arriving), {}, "parquet", {"path": str(written)}, str(directory / "floor"), TRIGGER)
    found = _latencies(put, written / "_spark_metadata", sizes)
    spark.call(Spark.stop)
    return found


def _row(sizes: Sizes) -> pa.Table:
    return pa.table({"stream": ["bench"], "value": payloads(1, sizes.row_bytes)})


def _latencies(publish: Callable[[int], float], log: Path, sizes: Sizes) -> list[float]:
    """Seconds from the start of `publish`, which returns it, to the next entry of `log`. Waits for earlier entries first."""
    _await(log, 1)
    found: list[float] = []
    for number in range(sizes.queryable_messages):
        before = _entries(log)
        started = publish(number)
        _await(log, before + 1)
        found.append(time.monotonic() - started)
    return found


def _await(log: Path, entries: int) -> None:
    deadline = time.monotonic() + TIMEOUT
    while _entries(log) < entries:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{log.name} has no {entries} entries after {TIMEOUT:g} s")
        time.sleep(0.002)


def _entries(log: Path) -> int:
    """Both logs number their entries from 0."""
    numbers = [int(stem) for path in log.glob("[0-9]*") if (stem := path.name.partition(".")[0]).isdigit()]
    return max(numbers, default=-1) + 1
