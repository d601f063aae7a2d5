"""`archive`: the journal into the archive's table, every row once."""

import json
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta
from pyspark.sql.streaming.readwriter import DataStreamWriter

from ropewalk.model.errors import UserMistake
from ropewalk.pipeline.archive.binding import check_started
from ropewalk.pipeline.archive.log import archive_ends
from ropewalk.pipeline.archive.reporting import report_archived
from ropewalk.pipeline.archive.restore import restore_rows
from ropewalk.pipeline.context import Context, StreamOptions
from ropewalk.pipeline.journal_client import JournalClient
from ropewalk.pipeline.options import EARLIEST
from ropewalk.pipeline.registry import job

AT_ITS_END = "archive"


class ArchiveJobOptions(StreamOptions, frozen=True, kw_only=True):
    starting: Annotated[
        str,
        Meta(description="Where the first run begins: `earliest`, `latest`, `archive` (where it ends) or JSON by shard."),
    ] = EARLIEST
    restore: Annotated[
        bool, Meta(description="First archive rows again that the archive has lost and the journal still has.")
    ] = False
    max_rows: int = 500_000


@job("archive", "copy the journal into the archive, exactly once", ArchiveJobOptions)
def archive(context: Context, options: ArchiveJobOptions) -> DataStreamWriter:
    place, checkpoint = context.place, context.checkpoint(options)
    client = JournalClient(place.address)
    # Before the archive may be refused: then it has lost rows, which the journal must keep.
    report_archived(client, place.archive_dir, look=not options.restore)
    check_started(place.archive_dir, checkpoint)
    if options.restore:
        rows = restore_rows(client, place.archive_dir)
        context.print_line(f"archive: {rows:,} lost rows were archived again")
        report_archived(client, place.archive_dir, look=True)
    begin = beginning(options.starting, place.archive_dir, checkpoint)
    # A batch committed here before Spark recorded it runs again, and retention may have removed its rows from the journal by
    # then: the source reads them from the archive itself. Rows removed before they were archived are reported as lost.
    source = context.journal(msgspec.structs.replace(options, starting=begin))
    return source.writeStream.format("ropewalk_archive").options(path=place.archive_dir, **place.options)


def beginning(starting: str, root: str, checkpoint: str) -> str:
    """`starting` as an option of the source. Raises UserMistake if it would archive rows twice."""
    ends = archive_ends(root)
    if starting == AT_ITS_END:
        return json.dumps({str(shard): end for shard, end in sorted(ends.items())}) if ends else EARLIEST
    if starting == EARLIEST and ends and _unused(checkpoint):
        raise UserMistake(
            f"the archive {root} has rows, and the progress of the job that wrote them is not in {checkpoint}: put it back, or "
            f"begin where the archive ends with --set archive.starting={AT_ITS_END}"
        )
    return starting


def _unused(checkpoint: str) -> bool:
    """No batch has begun from here, as far as it is a directory of this machine."""
    place = checkpoint.removeprefix("file://")
    return "://" not in place and not any(Path(place, "offsets").glob("[0-9]*"))
