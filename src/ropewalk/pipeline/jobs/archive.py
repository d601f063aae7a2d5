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
    max_rows: int = 500_000


@job("archive", "copy the journal into the archive, exactly once", ArchiveJobOptions)
def archive(context: Context, options: ArchiveJobOptions) -> DataStreamWriter:
    place, checkpoint = context.place, context.checkpoint(options)
    report_archived(JournalClient(place.address), place.archive_dir)  # first: an archive that is refused has lost rows
    check_started(place.archive_dir, checkpoint)
    begin = beginning(options.starting, place.archive_dir, checkpoint)
    # A batch committed here before Spark recorded it runs again, and retention may have removed its rows from the journal by
    # then: the source reads them from the archive itself. Rows removed before they were archived are reported as lost.
    rows = context.journal(msgspec.structs.replace(options, starting=begin))
    return rows.writeStream.format("ropewalk_archive").options(path=place.archive_dir, **place.options)


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
