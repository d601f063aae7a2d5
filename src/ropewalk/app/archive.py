"""Cold history, as the settings say: the archive, and a backend whose streams reach back into it."""

import time

from ropewalk.app.registry import ARCHIVES, resolve
from ropewalk.app.settings import Settings
from ropewalk.engine.tiered import TieredBackend
from ropewalk.ports import Archive, Backend, JournalReader


def archive_of(settings: Settings, journal: JournalReader) -> Archive | None:
    chosen = settings.archive
    if not chosen.archive_dir:
        return None
    archive: Archive = resolve(ARCHIVES, "archive")(
        chosen.archive_dir, settings.journal.journal_shards, time.time, chosen.archive_refresh, journal
    )
    return archive


def tiered(settings: Settings, hot: Backend, archive: Archive | None) -> Backend:
    """The plain backend where there is no archive."""
    return hot if archive is None else TieredBackend(hot, archive, settings.archive.archive_replay_limit)
