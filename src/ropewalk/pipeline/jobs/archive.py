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
    # A batch that was committed here before Spark noted it runs again, and by then the journal may have let go of its rows: the
    # source takes them from the archive itself. What was let go of before it was archived is in neither, and that is said.
    sink = context.journal(options).writeStream.format("ropewalk_archive")
    return sink.options(path=place.archive_dir, **place.options)
