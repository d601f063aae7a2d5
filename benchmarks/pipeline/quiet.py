"""Whether the live path notices the archive: latency with the archive query at work, against the same without it.

Other streams are published to all the while, in both kinds of round, so that there is always something to archive.
"""

import tempfile
import threading
import time
from pathlib import Path

import msgspec

from benchmarks.floor import Floor
from benchmarks.load.field import Field
from benchmarks.load.publisher import Address, Publisher
from benchmarks.pair import Pair
from benchmarks.pipeline.batches import journaled
from benchmarks.pipeline.rows import server_url
from benchmarks.pipeline.spark import Spark
from benchmarks.remote import Remote
from benchmarks.report import Bar, Figure, figure, milliseconds
from benchmarks.server import Server
from benchmarks.sizes import Sizes
from ropewalk.pipeline.archive import archived_positions

TRIGGER = "1 second"  # more often than the job itself, so that it is at work throughout a round
REQUESTS = 20.0
TIMEOUT = 120.0
BAR = Bar("ratio", "<=", 1.3)


class Background:
    """Lives in a process of its own, so that the publisher whose messages are timed is not held up."""

    def __init__(self) -> None:
        self._ended = threading.Event()

    def begin(self, address: Address, payload: int, rate: int) -> None:
        publisher = Publisher(address, "background", payload)
        batch = round(rate / REQUESTS)
        threading.Thread(target=publisher.pace_until, args=(self._ended, REQUESTS, batch), daemon=True).start()

    def end(self) -> None:
        self._ended.set()


class _Archive:
    """The archive query, started and stopped again and again on one checkpoint."""

    def __init__(self, spark: Remote[Spark], server: Server, directory: Path) -> None:
        self._spark = spark
        self._options = {"url": server_url(server), "columns": "journal", "startingOffsets": "earliest"}
        self._root, self._home = str(directory / "archive"), str(directory / "query")

    @property
    def rows(self) -> int:
        return sum(archived_positions(self._root).values())

    def start(self) -> None:
        """Returns when its first batch is done."""
        before, deadline = self.rows, time.monotonic() + TIMEOUT
        target = {"path": self._root, "url": self._options["url"]}
        self._spark.call(Spark.keep_running, "ropewalk", self._options, "ropewalk_archive", target, self._home, TRIGGER)
        while self.rows == before:
            if time.monotonic() > deadline:
                raise TimeoutError(f"nothing was archived in {TIMEOUT:g} s")
            time.sleep(0.05)

    def stop(self) -> None:
        self._spark.call(Spark.stop)


def measure_quiet(spark: Remote[Spark], floor: Remote[Floor], field: Remote[Field], sizes: Sizes) -> list[Figure]:
    sizes = msgspec.structs.replace(sizes, subscribers=sizes.quiet_subscribers)
    count, rate = sizes.quiet_messages, sizes.quiet_rate
    with_, without = list[list[float]](), list[list[float]]()
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory,
        journaled(f"{directory}/data", sizes) as server,
        Remote(Background) as background,
    ):
        pair = Pair(server, floor, field, sizes)
        pair.check(count, 1)
        background.call(Background.begin, server.address, sizes.row_bytes, sizes.quiet_background)
        archive = _Archive(spark, server, Path(directory))
        for _ in range(sizes.quiet_rounds):
            # the query is started before either round, so that what it compiles and loads falls into neither
            archive.start()
            with_.append(pair.serve_paced(count, rate))
            archive.stop()
            without.append(pair.serve_paced(count, rate))
        background.call(Background.end)
        archived = archive.rows
        pair.close()
    details: dict[str, float] = {
        "subscribers": sizes.subscribers,
        "rate": rate,
        "messages_a_round": count,
        "background_rate": sizes.quiet_background,
        "archived": archived,
    }
    return [_figure(percentile, with_, without, details) for percentile in (50, 99)]


def _figure(percentile: int, with_: list[list[float]], without: list[list[float]], details: dict[str, float]) -> Figure:
    title = f"publish to last of {details['subscribers']:,.0f} while archiving, p{percentile}"
    rounds, floor = ([milliseconds(each, percentile) for each in kind] for kind in (with_, without))
    return figure(f"l{percentile}", title, "ms", rounds, floor, details, BAR if percentile == 99 else None)
