"""How far the archive is, for the server: it deletes segments of its journal that lie below."""

import logging
from pathlib import Path

from deltalake.exceptions import DeltaError

from ropewalk.model.errors import RopewalkError
from ropewalk.pipeline.archive.coverage import archived_end, covered
from ropewalk.pipeline.archive.log import Extent, held, opened
from ropewalk.pipeline.journal_client import JournalClient
from ropewalk.pipeline.offsets import Spans, by_shard
from ropewalk.pipeline.tiered import ArchiveFile, archive_files

logger = logging.getLogger("ropewalk.archive")


def archived_positions(root: str, journal: Spans | None = None) -> dict[int, int]:
    """By shard: the journal may go below this position, because the archive's files have what it holds there.

    Files that are missing or cut short do not count. A newer generation counts only if the archive has the older ones to the
    ends that `journal` lists.
    """
    table = opened(root)
    if table is None:
        return {}
    spans = journal or {}
    oldest = {shard: own[0].first for shard, own in spans.items() if own}
    runs = covered(root, [file for file in archive_files(table) if _complete(root, file)], oldest)
    extents: dict[int, list[Extent]] = {}
    for extent in held(table):
        extents.setdefault(extent.shard, []).append(extent)
    return {shard: archived_end(own, runs.get(shard, ()), spans.get(shard, ())) for shard, own in extents.items()}


def report_archived(client: JournalClient, root: str) -> None:
    """Report the end of the archive to the server, even if it is lower than before. Failures are logged, and
    corrected by the next report."""
    try:
        journal = client.journal()
        found = archived_positions(root, by_shard(journal.spans, journal.shards))
        ends = dict.fromkeys(journal.archived, 0) | found
        for shard, end in sorted(ends.items()):
            if end < (before := journal.archived.get(shard, 0)):
                logger.warning(
                    "the archive has lost rows; the journal keeps what it still has of them",
                    extra={"archive": root, "shard": shard, "archived_before": before, "archived_now": end},
                )
        client.archived(ends)
    except (RopewalkError, DeltaError, OSError) as error:
        logger.warning("cannot report archived positions to the server", extra={"reason": str(error)})


def _complete(root: str, file: ArchiveFile) -> bool:
    try:
        return (Path(root) / file.path).stat().st_size == file.size
    except OSError:
        return False
