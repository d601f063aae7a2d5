"""Vacuum: deletes what no reader can want any more: files that compaction replaced, and those that failed attempts left."""

from datetime import timedelta

from ropewalk.pipeline.archive.log import opened

RETENTION = timedelta(hours=24)
"""Longer than any reader that began with an older state of the table, and than any batch that has written but not committed."""


def vacuum(root: str, retention: timedelta = RETENTION, dry_run: bool = False) -> list[str]:
    """The files that were deleted, or with `dry_run` would be."""
    table = opened(root)
    if table is None:
        return []
    hours = int(retention.total_seconds() // 3600)
    return table.vacuum(hours, dry_run=dry_run, enforce_retention_duration=False, full=True)
