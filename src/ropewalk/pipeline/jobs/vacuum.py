"""`vacuum`: deletes files that the archive, and the tables of other jobs, name no more. Needs no Spark and no server."""

from datetime import timedelta
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from ropewalk.pipeline.config import seconds
from ropewalk.pipeline.context import BatchOptions, Context
from ropewalk.pipeline.registry import job


class VacuumOptions(BatchOptions, frozen=True, kw_only=True):
    retention: Annotated[str, Meta(description="How long files stay that readers may still have open.")] = "24h"
    force: Annotated[bool, Meta(description="Delete files of batches too that are written and not committed yet.")] = False
    dry_run: Annotated[bool, Meta(description="Dry run: only list the files.")] = False


@job("vacuum", "delete files that the archive and other jobs' tables no longer name", VacuumOptions, offline=True)
def vacuum(context: Context, options: VacuumOptions) -> int:
    from ropewalk.pipeline.archive import vacuum as vacuum_table
    from ropewalk.pipeline.tables import job_tables

    retention = timedelta(seconds=seconds(options.retention))
    for table in (context.place.archive_dir, *job_tables(context.place.state_dir)):
        gone = vacuum_table(table, retention, options.dry_run, options.force)
        verb = "would be deleted" if options.dry_run else "deleted"
        context.print_line(f"vacuum: {len(gone)} files of {Path(table).name} {verb}")
    return 0
