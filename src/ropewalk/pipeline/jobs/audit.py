"""`audit`: proves the log. Journal and archive together have every position once, per shard, generation, stream and epoch;
where both have a row it is the same; the archive's files are unchanged."""

import os
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from ropewalk.model.errors import UserMistake
from ropewalk.model.journal import COLUMNS, GENERATION_SIZE, ShardSpan
from ropewalk.pipeline.archive.coverage import missing_positions
from ropewalk.pipeline.archive.files import checked_files
from ropewalk.pipeline.archive.log import Extent, held, opened
from ropewalk.pipeline.archive.reporting import report_archived
from ropewalk.pipeline.context import BatchOptions, Context
from ropewalk.pipeline.journal_client import JournalClient, JournalState
from ropewalk.pipeline.registry import job


class AuditFault(Struct, frozen=True):
    """`kind`: stream, log (journal and archive together), journal, archive, file or difference. `where` and `what` are for
    people."""

    kind: str
    where: str
    what: str


class Part(Struct, frozen=True):
    """How much one side holds."""

    shards: int = 0
    rows: int = 0

    @classmethod
    def of(cls, extents: Mapping[tuple[int, int], tuple[int, int, int, int]]) -> "Part":
        return cls(len({shard for shard, _ in extents}), sum(rows for _, _, rows, _ in extents.values()))


class AuditReport(Struct, frozen=True):
    """`compared` rows lie in both and were held against each other. Of each kind only the first faults are named."""

    streams: int
    messages: int
    journal: Part
    archive: Part
    compared: int
    faults: tuple[AuditFault, ...] = ()

    @property
    def holds(self) -> bool:
        return not self.faults

    @property
    def json(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode({"holds": self.holds, **msgspec.structs.asdict(self)})) + b"\n"

    @property
    def text(self) -> str:
        lines = [
            f"journal   {self.journal.rows:>12,} rows in {self.journal.shards} shards",
            f"archive   {self.archive.rows:>12,} rows in {self.archive.shards} shards",
            f"compared  {self.compared:>12,} rows, journal with archive",
            f"streams   {self.streams:>12,} with {self.messages:,} messages",
            *(f"FAULT     {fault.kind}: {fault.where}: {fault.what}" for fault in self.faults),
            "the log holds" if self.holds else "the log does NOT hold",
        ]
        return "\n".join(lines)


EXAMPLES = 20
FILES_REPORTED = 1000


class AuditOptions(BatchOptions, frozen=True, kw_only=True):
    report: Annotated[str, Meta(description="File for the report as JSON; empty writes none.")] = ""


@job("audit", "prove that the log has no hole, no duplicate, and an archive that equals it", AuditOptions)
def audit(context: Context, options: AuditOptions) -> int:
    if options.report:
        check_place(Path(options.report))
    report = audited(context)
    context.print_line(report.text)
    if options.report:
        write_report(report, Path(options.report))
    return 0 if report.holds else 1


def check_place(path: Path) -> None:
    """Said before an audit that may take hours. Raises UserMistake."""
    if path.is_dir():
        raise UserMistake(f"[pipeline.audit] report is a file, and {path} is a directory")
    if not path.parent.is_dir():
        raise UserMistake(f"[pipeline.audit] report: there is no directory {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UserMistake(f"[pipeline.audit] report: {path} may not be written")


def write_report(report: AuditReport, path: Path) -> None:
    """What could not be written is not audited again. Raises UserMistake."""
    try:
        path.write_bytes(report.json)
    except OSError as error:
        raise UserMistake(f"[pipeline.audit] report: {path} could not be written: {error.strerror}") from error


def audited(context: Context) -> AuditReport:
    # Order matters: rows registered meanwhile are not expected, and rows that retention deletes meanwhile are in the archive.
    client = JournalClient(context.place.address)
    state = client.journal()
    report_archived(client, context.place.archive_dir, look=True)  # rows that the archive has lost are kept from now on
    journal = _columns(context.journal_now(failOnDataLoss="false").withColumnRenamed("partition", "shard")).cache()
    try:
        journal.count()
        return build_report(context, state, journal)
    finally:
        journal.unpersist()


def build_report(context: Context, state: JournalState, journal: DataFrame) -> AuditReport:
    """Audit these rows of the journal against the archive of this run."""
    table = opened(context.place.archive_dir)
    broken = [] if table is None else checked_files(table, context.place.archive_dir, _progress_printer(context))
    archived = context.archive_now(without=[each.path for each in broken if not each.readable])
    archive = None if archived is None else _columns(archived)
    in_journal, in_archive = _extents(journal), _extents(archive)
    common = _common(in_journal, in_archive)
    everything = journal if archive is None else journal.unionByName(_without(archive, common))
    begins = shards(everything).cache()
    by_stream = streams(everything).cache()
    counted = by_stream.agg(F.count("*"), F.sum("rows")).first()
    assert counted is not None
    found = [AuditFault("file", each.path, each.what) for each in broken]
    promised = [] if table is None else held(table)
    absent = [] if table is None else missing_positions(table, context.place.archive_dir, {each.path for each in broken})
    found += [AuditFault("archive", f"shard {each.shard}", each.what) for each in absent[:EXAMPLES]]
    found += _claim_faults(state.archived, promised)
    found += _log_faults(_extents(everything), _expected(state.spans, promised))
    found += _twice("journal", in_journal) + _twice("archive", in_archive) + _stream_faults(by_stream, begins)
    if archive is not None and common:
        found += _difference_faults(within(journal, common), within(archive, common))
    return AuditReport(
        streams=counted[0] or 0,
        messages=counted[1] or 0,
        journal=Part.of(in_journal),
        archive=Part.of(in_archive),
        compared=sum(end - first for first, end in common.values()),
        faults=tuple(found),
    )


def _progress_printer(context: Context) -> Callable[[int, int], None]:
    def show(done: int, total: int) -> None:
        if done % FILES_REPORTED == 0:
            context.print_line(f"audit: {done:,} of {total:,} files of the archive checked")

    return show


GenerationKey = tuple[int, int]
"""A shard and the number of one of its generations."""

Extents = dict[GenerationKey, tuple[int, int, int, int]]
"""By generation of a shard: first and last position, rows, different positions."""


def _extents(rows: DataFrame | None) -> Extents:
    if rows is None:
        return {}
    found = shards(rows).collect()
    return {(row["shard"], row["generation"]): (row["first"], row["last"], row["rows"], row["different"]) for row in found}


def _claim_faults(told: Mapping[int, int], archived: Sequence[Extent]) -> list[AuditFault]:
    """The server deletes rows that were reported as archived."""
    ends = {extent.shard: extent.last + 1 for extent in sorted(archived)}
    return [
        AuditFault(
            "archive", f"shard {shard}", f"positions up to {end - 1} were reported to the server as archived, but are missing"
        )
        for shard, end in sorted(told.items())
        if ends.get(shard, 0) < end
    ]


def _expected(spans: Sequence[ShardSpan], archived: Sequence[Extent]) -> dict[GenerationKey, tuple[int, int]]:
    """Positions [first, end) that journal and archive together must have, according to their own metadata.

    If the journal lists only the end of a generation, the archive must have it if it has an earlier one.
    """
    wanted: dict[GenerationKey, tuple[int, int]] = {
        (each.shard, each.generation): (each.first, each.last + 1) for each in archived
    }
    since = {shard: min(each.generation for each in archived if each.shard == shard) for shard in {e.shard for e in archived}}
    for span in spans:
        generation = (span.shard, span.first // GENERATION_SIZE)
        gone = span.first == span.end
        if gone and generation not in wanted and generation[1] <= since.get(span.shard, generation[1]):
            continue
        first = generation[1] * GENERATION_SIZE if gone and generation not in wanted else span.first
        known = wanted.get(generation, (first, first))
        wanted[generation] = (min(known[0], first), max(known[1], span.end))
    return {generation: span for generation, span in sorted(wanted.items()) if span[0] < span[1]}


def _log_faults(found: Extents, wanted: dict[GenerationKey, tuple[int, int]]) -> list[AuditFault]:
    """Positions that neither the journal nor the archive has, between where the log begins and where it ends."""
    faults = []
    for generation, (first, end) in wanted.items():
        begins, last, _, different = found.get(generation, (end, end - 1, 0, 0))
        missing = max(end, last + 1) - min(first, begins) - different
        if missing:
            faults.append(AuditFault("log", _named(generation), f"{missing} of the positions {first} to {end - 1} are missing"))
    strange = [
        AuditFault("log", _named(generation), "unknown generation") for generation in sorted(found.keys() - wanted.keys())
    ]
    return faults + strange


def _twice(where: str, extents: Extents) -> list[AuditFault]:
    return [
        AuditFault(where, _named(generation), f"{rows - different} positions twice")
        for generation, (_, _, rows, different) in sorted(extents.items())
        if rows != different
    ]


def _named(generation: GenerationKey) -> str:
    return f"shard {generation[0]} generation {generation[1]}"


def _common(journal: Extents, archive: Extents) -> dict[GenerationKey, tuple[int, int]]:
    """Positions that both have begun with and neither has ended before."""
    both = {generation: (journal[generation], archive[generation]) for generation in journal.keys() & archive.keys()}
    spans = {generation: (max(j[0], a[0]), min(j[1], a[1]) + 1) for generation, (j, a) in both.items()}
    return {generation: span for generation, span in sorted(spans.items()) if span[0] < span[1]}


def _without(archive: DataFrame, common: dict[GenerationKey, tuple[int, int]]) -> DataFrame:
    """What the archive alone has: what the journal has let go, and shards it has nothing of."""
    return archive.join(within(archive, common).select("shard", "position"), ["shard", "position"], "left_anti")


def _columns(rows: DataFrame) -> DataFrame:
    """Rows that stand for lost ones are left out, so that what they stand for is missing."""
    return rows.where(F.col("event") != "gap").select("shard", "position", *COMPARED)


def _stream_faults(by_stream: DataFrame, begins: DataFrame) -> list[AuditFault]:
    found = faults(by_stream, begins.select("shard", "generation", "first")).limit(EXAMPLES).collect()
    return [
        AuditFault("stream", f"{row['stream']} epoch {row['epoch']}", f"{row['holes']} missing, {row['duplicates']} twice")
        for row in found
    ]


def _difference_faults(journal: DataFrame, archive: DataFrame) -> list[AuditFault]:
    found = differences(journal, archive).orderBy("shard", "position").limit(EXAMPLES).collect()
    return [AuditFault("difference", f"shard {row['shard']} position {row['position']}", row["difference"]) for row in found]


COMPARED = tuple(column.name for column in COLUMNS if column.name != "position")


def streams(rows: DataFrame) -> DataFrame:
    """By stream and epoch: first and last offset, how many rows, how many different offsets, and where it lies."""
    return (
        rows.where(F.col("event") == "publish")
        .groupBy("stream", "epoch")
        .agg(
            F.min("offset").alias("first"),
            F.max("offset").alias("last"),
            F.count("*").alias("rows"),
            F.count_distinct("offset").alias("different"),
            F.min("shard").alias("shard"),
            F.expr(f"min(position) div {GENERATION_SIZE}").alias("generation"),
        )
    )


def faults(streams: DataFrame, begins: DataFrame) -> DataFrame:
    """Streams with a hole or a duplicate.

    `begins` has the oldest position of each generation of a shard: where that is the generation's first, offsets begin with 1.
    """
    known = streams.join(F.broadcast(begins.withColumnRenamed("first", "oldest")), ["shard", "generation"], "left")
    first = F.when(F.col("oldest") % GENERATION_SIZE == 0, F.lit(1)).otherwise(F.col("first"))
    holes = F.col("last") - first + 1 - F.col("different")
    duplicates = F.col("rows") - F.col("different")
    found = known.select("stream", "epoch", first.alias("first"), "last", holes.alias("holes"), duplicates.alias("duplicates"))
    return found.where("holes != 0 OR duplicates != 0")


def shards(rows: DataFrame) -> DataFrame:
    """By shard and generation: first and last position, how many rows, how many different positions."""
    return rows.groupBy("shard", F.expr(f"position div {GENERATION_SIZE}").alias("generation")).agg(
        F.min("position").alias("first"),
        F.max("position").alias("last"),
        F.count("*").alias("rows"),
        F.count_distinct("position").alias("different"),
    )


def differences(journal: DataFrame, archive: DataFrame) -> DataFrame:
    """Positions that both should have and that one has not, or that both have with different rows."""
    key = ["shard", "position"]
    left = journal.select(*key, F.struct(*COMPARED).alias("journal"))
    right = archive.select(*key, F.struct(*COMPARED).alias("archive"))
    both = left.join(right, key, "full_outer").where(~F.col("journal").eqNullSafe(F.col("archive")))
    return both.select(*key, _difference().alias("difference"))


def within(rows: DataFrame, common: Mapping[tuple[int, int], tuple[int, int]]) -> DataFrame:
    """The rows whose position lies in one of the ranges [first, end), given by shard and generation."""
    inside = [
        (F.col("shard") == shard) & (F.col("position") >= first) & (F.col("position") < end)
        for (shard, _), (first, end) in common.items()
    ]
    return rows.where(reduce(Column.__or__, inside, F.lit(False)))


def _difference() -> Column:
    columns = F.array(
        *(F.when(~F.col(f"journal.{name}").eqNullSafe(F.col(f"archive.{name}")), F.lit(name)) for name in COMPARED)
    )
    return (
        F.when(F.col("archive").isNull(), F.lit("not in the archive"))
        .when(F.col("journal").isNull(), F.lit("not in the journal"))
        .otherwise(F.concat(F.lit("differs in "), F.array_join(columns, ", ")))
    )
