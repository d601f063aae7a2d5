"""How far the archive is, for the server: it deletes segments of its journal that lie below."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from deltalake.exceptions import DeltaError

from ropewalk.model.errors import RopewalkError
from ropewalk.pipeline.archive.coverage import archived_end, covered
from ropewalk.pipeline.archive.log import Extent, held, opened
from ropewalk.pipeline.archive.restore import count_rows, lost_rows
from ropewalk.pipeline.journal_client import JournalClient
from ropewalk.pipeline.offsets import Spans, by_shard
from ropewalk.pipeline.tiered import ArchiveFile, archive_files

logger = logging.getLogger("ropewalk.archive")

MAX_NAMED = 4
"""Places that a warning names; it counts the others."""


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


def report_archived(client: JournalClient, root: str, look: bool = False) -> None:
    """Report the end of the archive to the server, even if it is lower than before. Failures are logged, and
    corrected by the next report.

    `look`: also warn of lost rows that earlier reports account for already.
    """
    try:
        journal = client.journal()
        spans = by_shard(journal.spans, journal.shards)
        found = archived_positions(root, spans)
        ends = dict.fromkeys(journal.archived, 0) | found
        lower = {shard: end for shard, end in sorted(ends.items()) if end < journal.archived.get(shard, 0)}
        if lower or look:
            _warn(root, spans, journal.archived, lower)
        client.archived(ends)
    except (RopewalkError, DeltaError, OSError) as error:
        logger.warning("cannot report archived positions to the server", extra={"reason": str(error)})


def _warn(root: str, spans: Spans, before: Mapping[int, int], lower: Mapping[int, int]) -> None:
    """One line for rows that the table lost, one for shards whose reported end is lower for another reason."""
    table = opened(root)
    lost = [] if table is None else lost_rows(table, root, spans)
    if lost:
        places = [f"shard {each.shard} {each.positions}" for each in lost]
        logger.warning(
            "the archive %s has lost rows; the journal still has %d of them and keeps them: %s. To archive them again, run the "
            "job archive with --set archive.restore=true",
            root,
            count_rows(lost),
            _first_few(places),
        )
    others = {shard: end for shard, end in lower.items() if shard not in {each.shard for each in lost}}
    if others:
        places = [f"shard {shard} ends at {end} (reported: {before[shard]})" for shard, end in others.items()]
        logger.warning(
            "the archive %s lacks rows that were reported to the server as archived, perhaps by another archive; the journal "
            "keeps those that it still has: %s",
            root,
            _first_few(places),
        )


def _first_few(places: Sequence[str]) -> str:
    more = len(places) - MAX_NAMED
    return ", ".join(places[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")


def _complete(root: str, file: ArchiveFile) -> bool:
    try:
        return (Path(root) / file.path).stat().st_size == file.size
    except OSError:
        return False
