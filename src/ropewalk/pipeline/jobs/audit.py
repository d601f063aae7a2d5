"""`audit`: proves the log. Per stream and epoch no hole and no duplicate; journal and archive the same, row for row."""

from pathlib import Path
from typing import Annotated

from msgspec import Meta
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ropewalk.pipeline.context import Context
from ropewalk.pipeline.registry import BatchOptions, job
from ropewalk.pipeline.report import AuditReport, Fault, Part
from ropewalk.pipeline.transforms.audit import COMPARED, differences, faults, shards, streams, within

EXAMPLES = 20


class AuditOptions(BatchOptions, frozen=True, kw_only=True):
    report: Annotated[str, Meta(description="File for the report as JSON; empty writes none.")] = ""


@job("audit", "prove that the log has no hole, no duplicate, and an archive that equals it", AuditOptions)
def audit(context: Context, options: AuditOptions) -> int:
    report = audited(context)
    context.say(report.text)
    if options.report:
        Path(options.report).write_bytes(report.json)
    return 0 if report.holds else 1


def audited(context: Context) -> AuditReport:
    journal = _columns(context.journal_now(failOnDataLoss="false").withColumnRenamed("partition", "shard")).cache()
    archived = context.archive_now()
    archive = None if archived is None else _columns(archived)
    try:
        return _report(journal, archive)
    finally:
        journal.unpersist()


def _report(journal: DataFrame, archive: DataFrame | None) -> AuditReport:
    in_journal, in_archive = _extents(journal), _extents(archive)
    common = _common(in_journal, in_archive)
    everything = journal if archive is None else journal.unionByName(_without(archive, common))
    begins = shards(everything).cache()
    by_stream = streams(everything).cache()
    found = _stream_faults(by_stream, begins) + _shard_faults("journal", in_journal) + _shard_faults("archive", in_archive)
    if archive is not None and common:
        found += _difference_faults(within(journal, common), within(archive, common))
    counted = by_stream.agg(F.count("*"), F.sum("rows")).first()
    assert counted is not None
    return AuditReport(
        streams=counted[0] or 0,
        messages=counted[1] or 0,
        journal=Part.of(in_journal),
        archive=Part.of(in_archive),
        compared=sum(end - first for first, end in common.values()),
        faults=tuple(found),
    )


Life = tuple[int, int]
"""A shard and the number of one of its lives."""

Extents = dict[Life, tuple[int, int, int, int]]
"""By life of a shard: first and last position, rows, different positions."""


def _extents(rows: DataFrame | None) -> Extents:
    if rows is None:
        return {}
    found = shards(rows).collect()
    return {(row["shard"], row["life"]): (row["first"], row["last"], row["rows"], row["different"]) for row in found}


def _common(journal: Extents, archive: Extents) -> dict[Life, tuple[int, int]]:
    """Positions that both have begun with and neither has ended before."""
    both = {life: (journal[life], archive[life]) for life in journal.keys() & archive.keys()}
    spans = {life: (max(j[0], a[0]), min(j[1], a[1]) + 1) for life, (j, a) in both.items()}
    return {life: span for life, span in sorted(spans.items()) if span[0] < span[1]}


def _without(archive: DataFrame, common: dict[Life, tuple[int, int]]) -> DataFrame:
    """What the archive alone has: what the journal has let go, and shards it has nothing of."""
    return archive.join(within(archive, common).select("shard", "position"), ["shard", "position"], "left_anti")


def _columns(rows: DataFrame) -> DataFrame:
    """Rows that stand for lost ones are left out, so that what they stand for is missing."""
    return rows.where(F.col("event") != "gap").select("shard", "position", *COMPARED)


def _stream_faults(by_stream: DataFrame, begins: DataFrame) -> list[Fault]:
    found = faults(by_stream, begins.select("shard", "life", "first")).limit(EXAMPLES).collect()
    return [
        Fault("stream", f"{row['stream']} epoch {row['epoch']}", f"{row['holes']} missing, {row['duplicates']} twice")
        for row in found
    ]


def _shard_faults(where: str, extents: Extents) -> list[Fault]:
    return [
        Fault(
            where, f"shard {shard} life {life}", f"{last - first + 1 - different} positions missing, {rows - different} twice"
        )
        for (shard, life), (first, last, rows, different) in sorted(extents.items())
        if not last - first + 1 == rows == different
    ]


def _difference_faults(journal: DataFrame, archive: DataFrame) -> list[Fault]:
    found = differences(journal, archive).orderBy("shard", "position").limit(EXAMPLES).collect()
    return [Fault("difference", f"shard {row['shard']} position {row['position']}", row["difference"]) for row in found]
