"""`compact`: many small files of the archive become few. Needs no Spark and no server."""

from typing import Annotated

from msgspec import Meta

from ropewalk.pipeline.context import Context
from ropewalk.pipeline.registry import BatchOptions, job


class CompactOptions(BatchOptions, frozen=True, kw_only=True):
    before: Annotated[str, Meta(description="Only days before this date (`2026-01-31`); empty takes all.")] = ""
    min_files: Annotated[int, Meta(description="Leave a shard's day alone that has fewer files.", ge=2)] = 2


@job("compact", "join small files of the archive", CompactOptions, offline=True)
def compact(context: Context, options: CompactOptions) -> int:
    from ropewalk.pipeline.archive import compact as compact_table

    done = compact_table(context.place.archive_dir, options.before, options.min_files)
    context.say(f"compact: {done.files_before} files became {done.files_after}, {done.rows:,} rows rewritten")
    return 0
