"""`replay`: publishes rows again, in order, at any pace, under the same or other names.

Each row is sent under its position in its shard, and the server passes over positions that it has seen of this selection, under
the replay's name: a replay that was cut off goes on when it is run again, also if the archive has grown meanwhile.
"""

import hashlib
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated, TextIO, TypeVar

import msgspec
import pyarrow as pa
from msgspec import Meta, Struct
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as F

from ropewalk.model.errors import UserMistake
from ropewalk.pipeline.archive.coverage import missing_positions
from ropewalk.pipeline.archive.files import checked_files
from ropewalk.pipeline.archive.log import opened
from ropewalk.pipeline.config import moment
from ropewalk.pipeline.context import BatchOptions, Context
from ropewalk.pipeline.journal_client import JournalClient, ipc
from ropewalk.pipeline.registry import job
from ropewalk.pipeline.supervision import INTERRUPTED

_DIGITS = 16


class ReplaySelection(Struct, frozen=True, omit_defaults=True):
    """Which rows, and the names they get. `archive` is the directory of the archive they come from; times are in UTC."""

    source: str
    archive: str = ""
    pattern: str = ""
    since: str = ""
    until: str = ""
    match: str = ""
    to: str = ""

    @property
    def digest(self) -> str:
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:_DIGITS]

    def producer(self, name: str, shard: int) -> str:
        return f"{name}:{self.digest}:{shard}"


def check_name(state_dir: Path, name: str, selection: ReplaySelection) -> None:
    """Raises UserMistake where the name belongs to another selection."""
    path = _path(state_dir, name)
    if not path.exists():
        return
    try:
        known = msgspec.json.decode(path.read_bytes(), type=ReplaySelection)
    except msgspec.MsgspecError as error:
        raise UserMistake(f"{path} cannot be read ({error}): it holds the selection of the replay {name!r}") from error
    if known != selection:
        raise UserMistake(
            f"the replay {name!r} was begun with another selection: {_differences(known, selection)}. Give this one a name of "
            "its own with replay.name, or continue with the first selection"
        )


def remember(state_dir: Path, name: str, selection: ReplaySelection) -> None:
    """Before its first row is published."""
    path = _path(state_dir, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".new")
    beside.write_bytes(msgspec.json.encode(selection))
    beside.replace(path)


def _path(state_dir: Path, name: str) -> Path:
    return state_dir / "replays" / f"{name}.json"


def _differences(before: ReplaySelection, now: ReplaySelection) -> str:
    old, new = msgspec.structs.asdict(before), msgspec.structs.asdict(now)
    return ", ".join(f"{key} was {old[key]!r} and is {new[key]!r}" for key in old if old[key] != new[key])


T = TypeVar("T")

CHUNK_ROWS = 1000
BAR_WIDTH = 30
BAR_SECONDS = 0.2
PLAIN_SECONDS = 10.0


class Pace:
    """`speed` 2 halves the time between rows, 0 takes none. The first row is due at once."""

    def __init__(self, speed: float, clock: Callable[[], float], wait: Callable[[float], object]) -> None:
        self._speed = speed
        self._clock = clock
        self._wait = wait
        self._began: tuple[float, float] | None = None

    def delay(self, timestamp: float) -> float:
        """Seconds until a row of this time is due, 0 if it is."""
        if self._began is None:
            self._began = (self._clock(), timestamp)
        if not self._speed:
            return 0.0
        start, first = self._began
        return max(0.0, start + (timestamp - first) / self._speed - self._clock())

    def wait(self, seconds: float) -> None:
        self._wait(seconds)


def chunks(rows: Iterable[T], pace: Pace, timestamp: Callable[[T], float], most: int = CHUNK_ROWS) -> Iterator[list[T]]:
    """Group rows that are due together. Yields a group, then waits until the next row is due."""
    due: list[T] = []
    for row in rows:
        at = timestamp(row)
        if due and (len(due) >= most or pace.delay(at)):
            yield due
            due = []
        if delay := pace.delay(at):  # asked again, for publishing takes its time
            pace.wait(delay)
        due.append(row)
    if due:
        yield due


class Bar:
    """How far it is. On a terminal a bar that fills, elsewhere a line now and then."""

    def __init__(self, total: int, clock: Callable[[], float], out: TextIO | None = None) -> None:
        self._total = total
        self._clock = clock
        self._out = out or sys.stderr
        self._began = clock()
        self._next = 0.0

    def show(self, done: int) -> None:
        now = self._clock()
        if now < self._next and done < self._total:
            return
        self._next = now + (BAR_SECONDS if self._out.isatty() else PLAIN_SECONDS)
        self._write(done, done / max(now - self._began, 1e-9))

    def end(self) -> None:
        if self._out.isatty():
            self._out.write("\n")

    def _write(self, done: int, rate: float) -> None:
        filled = BAR_WIDTH * done // self._total
        bar = "█" * filled + "·" * (BAR_WIDTH - filled)
        text = f"{bar} {100 * done // self._total:>3} %  {done:,} of {self._total:,} rows  {rate:,.0f}/s"
        self._out.write(f"\r\x1b[2K{text}" if self._out.isatty() else f"{text}\n")
        self._out.flush()


PART_ROWS = 50_000
EXAMPLES = 5
_TEXT = ("exclude_socket", "broadcast_type")


class ReplayOptions(BatchOptions, frozen=True, kw_only=True):
    name: Annotated[
        str,
        Meta(
            description="Names the replay: under a name each row is published once. Another selection is refused under it.",
            pattern=r"^[A-Za-z0-9_.:-]{1,100}$",
        ),
    ] = "replay"
    source: Annotated[str, Meta(description="`archive` or `journal`.")] = "archive"
    pattern: Annotated[str, Meta(description="Regular expression of the streams to replay.")] = ""
    since: Annotated[str, Meta(description="From this time on (`2026-01-31T12:00:00Z`).")] = ""
    until: Annotated[str, Meta(description="Up to before this time.")] = ""
    match: Annotated[str, Meta(description="Regular expression of the part of a name to change; `^` puts before it.")] = ""
    to: Annotated[str, Meta(description="What the part becomes; `$1` … are its groups.")] = ""
    fail_on_data_loss: Annotated[bool, Meta(description="Publish nothing if rows of the source are lost.")] = True
    speed: Annotated[float, Meta(description="1 is the original speed, 10 ten times it, 0 as fast as possible.", ge=0)] = 0.0

    def __post_init__(self) -> None:
        self.selection("")

    def selection(self, archive_dir: str) -> ReplaySelection:
        """Raises UserMistake for times that cannot be read."""
        since, until = (moment(text).isoformat() if text else "" for text in (self.since, self.until))
        archive = archive_dir if self.source == "archive" else ""
        return ReplaySelection(self.source, archive, self.pattern, since, until, self.match, self.to)


@job("replay", "publish rows of the archive or the journal again, in order", ReplayOptions)
def replay(context: Context, options: ReplayOptions) -> int:
    selection = options.selection(str(Path(context.place.archive_dir).absolute()))
    check_name(context.place.state_dir, options.name, selection)
    source = _source(context, options)
    check_expressions(context.spark, selection.pattern, selection.match, selection.to)
    selected = chosen(source, selection.pattern, selection.since, selection.until)
    rows = renamed(selected, selection.match, selection.to)
    total = rows.count()
    if not total:
        context.print_line("replay: nothing to publish")
        return 0
    remember(context.place.state_dir, options.name, selection)
    client, bar = JournalClient(context.place.address), Bar(total, time.monotonic)
    pace = Pace(options.speed, time.monotonic, context.stopping.wait)
    published = skipped = 0
    for chunk in chunks(_ordered(rows, total), pace, lambda row: row["timestamp"].timestamp()):
        if context.stopping.is_set():
            break
        answer = client.publish(ipc(_body(options.name, selection, chunk)))
        published += answer.published
        skipped += answer.skipped
        bar.show(published + skipped)
    bar.end()
    before = f", {skipped:,} were published before" if skipped else ""
    context.print_line(f"replay: {published:,} of {total:,} rows published{before}")
    return 0 if published + skipped == total else INTERRUPTED


def _source(context: Context, options: ReplayOptions) -> DataFrame:
    if options.source == "journal":
        lossy = str(options.fail_on_data_loss).lower()
        return context.journal_now(failOnDataLoss=lossy).withColumnRenamed("partition", "shard")
    if options.source != "archive":
        raise UserMistake(f"[pipeline.replay] source is archive or journal, not {options.source!r}")
    table = opened(context.place.archive_dir)
    damaged = checked_files(table, context.place.archive_dir) if table else []
    if options.fail_on_data_loss and damaged:
        raise UserMistake(
            f"the archive's file {damaged[0].path} {damaged[0].what} ({len(damaged)} such files in all); "
            "fail_on_data_loss=false publishes what the others have"
        )
    archived = context.archive_now(without=[each.path for each in damaged])
    if archived is None or table is None:
        raise UserMistake(f"no archive in {context.place.archive_dir} yet: `ropewalk pipeline run archive` creates one")
    if options.fail_on_data_loss and (absent := missing_positions(table, context.place.archive_dir)):
        lost = ", ".join(f"shard {each.shard} positions {each.first} to {each.end - 1}" for each in absent[:EXAMPLES])
        raise UserMistake(
            f"the archive lacks rows ({lost}); see `ropewalk pipeline run audit`; fail_on_data_loss=false "
            "publishes what there is"
        )
    return archived


def _ordered(rows: DataFrame, total: int) -> Iterator[Row]:
    # One part after another is held by the driver, and the next one is prepared meanwhile.
    return iter(in_order(rows, total // PART_ROWS + 1).toLocalIterator(prefetchPartitions=True))


def _body(name: str, selection: ReplaySelection, chunk: list[Row]) -> pa.RecordBatch:
    columns = {column: pa.array([row[column] for row in chunk], pa.string()) for column in ("stream", *_TEXT)}
    columns["value"] = pa.array([bytes(row["value"]) for row in chunk], pa.binary())
    columns["producer"] = pa.array([selection.producer(name, row["shard"]) for row in chunk], pa.string())
    columns["sequence"] = pa.array([row["position"] for row in chunk], pa.int64())
    return pa.RecordBatch.from_pydict(columns)


COLUMNS = ("stream", "value", "exclude_socket", "broadcast_type", "timestamp", "shard", "position")


def chosen(rows: DataFrame, pattern: str = "", since: str = "", until: str = "") -> DataFrame:
    """Publications of streams that match as a whole, from a time on, up to before a time (ISO, UTC)."""
    kept = rows.where(F.col("event") == "publish")
    if pattern:
        kept = kept.where(F.col("stream").rlike(_whole(pattern)))
    if since:
        kept = kept.where(F.col("timestamp") >= F.lit(since).cast("timestamp"))
    if until:
        kept = kept.where(F.col("timestamp") < F.lit(until).cast("timestamp"))
    return kept


def check_expressions(spark: SparkSession, pattern: str, match: str, to: str) -> None:
    """Raises UserMistake for regular expressions that Java, whose they are, does not read, and for groups that are not there.

    Expressions of constants are computed while a query is planned: nothing is read and no task runs if they fail.
    """
    nothing = F.lit("")
    _check(spark, nothing.rlike(_whole(pattern)), f"pattern is not a regular expression: {pattern!r}")
    _check(spark, nothing.rlike(match), f"match is not a regular expression: {match!r}")
    # The empty alternative matches everywhere, and groups are only resolved on a match.
    _check(spark, F.regexp_replace(nothing, f"{match}|", to), f"to names a group that match has not: {to!r}")


def _check(spark: SparkSession, computed: Column, mistake: str) -> None:
    try:
        spark.range(1).select(computed).first()
    except PySparkException as error:
        raise UserMistake(f"[pipeline.replay] {mistake}") from error


def _whole(pattern: str) -> str:
    return f"^(?:{pattern})$"


def renamed(rows: DataFrame, match: str, to: str) -> DataFrame:
    """Streams under new names: what `match` finds becomes `to`, with $1 … for its groups. No `match`, no change."""
    return rows.withColumn("stream", F.regexp_replace("stream", match, to)) if match else rows


def in_order(rows: DataFrame, parts: int) -> DataFrame:
    """As they were registered, cut into `parts`. Within a shard positions are kept in order also where its clock went back."""
    before = Window.partitionBy("shard").orderBy("position").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    order = ("reached", "shard", "position")
    timed = rows.withColumn("reached", F.max("timestamp").over(before))
    return timed.repartitionByRange(parts, *order).sortWithinPartitions(*order).select(*COLUMNS)
