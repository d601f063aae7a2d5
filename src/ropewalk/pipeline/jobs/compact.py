"""`compact`: many small files of the archive, and of the tables of other jobs, become few. Needs no Spark and no server."""

from pathlib import Path
from typing import Annotated

from msgspec import Meta

from ropewalk.pipeline.checked import DamagedFile
from ropewalk.pipeline.config import day
from ropewalk.pipeline.context import BatchOptions, Context
from ropewalk.pipeline.registry import job


class CompactOptions(BatchOptions, frozen=True, kw_only=True):
    before: Annotated[str, Meta(description="Only days before this date (`2026-01-31`); empty takes all.")] = ""
    min_files: Annotated[int, Meta(description="Leave a shard's day alone that has fewer files.", ge=2)] = 2

    def __post_init__(self) -> None:
        self.first_day_left()

    def first_day_left(self) -> str:
        """As the table writes its dates; "" for none. Raises UserMistake."""
        return day(self.before).isoformat() if self.before else ""


@job("compact", "join small files of the archive and of other jobs' tables", CompactOptions, offline=True)
def compact(context: Context, options: CompactOptions) -> int:
    from ropewalk.pipeline.archive import compact as compact_table
    from ropewalk.pipeline.tables import job_tables, join_files

    done = compact_table(context.place.archive_dir, options.first_day_left(), options.min_files)
    context.print_line(f"compact: {done.files_before} files became {done.files_after}, {done.rows:,} rows rewritten")
    damaged = list(done.damaged)
    for table in job_tables(context.place.state_dir):
        try:
            if joined := join_files(table):
                context.print_line(f"compact: {joined} files of the table {Path(table).name} were joined")
        except DamagedFile as error:
            damaged.append(f"{Path(table).name}/{error.path} {error.what}")
    for fault in damaged:
        context.print_line(f"compact: left alone: {fault}")
    return 1 if damaged else 0
