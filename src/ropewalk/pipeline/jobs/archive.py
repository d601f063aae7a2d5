"""`archive`: the journal into the archive's table, every row once."""

from pyspark.sql.streaming.readwriter import DataStreamWriter

from ropewalk.pipeline.archive.binding import check_started
from ropewalk.pipeline.context import Context
from ropewalk.pipeline.registry import StreamOptions, job


class ArchiveOptions(StreamOptions, frozen=True, kw_only=True):
    max_rows: int = 500_000


@job("archive", "copy the journal into the archive, exactly once", ArchiveOptions)
def archive(context: Context, options: ArchiveOptions) -> DataStreamWriter:
    place = context.place
    check_started(place.archive_dir, context.checkpoint(options))
    # Not from what it writes itself: what the journal let go of before it was archived is lost, and has to be said.
    sink = context.journal(options, archive="").writeStream.format("ropewalk_archive")
    return sink.options(path=place.archive_dir, **place.options)
