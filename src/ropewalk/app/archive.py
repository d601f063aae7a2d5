"""Cold history, as the settings say: a backend whose streams reach back into the archive, or the plain backend."""

import time

from ropewalk.app.registry import ARCHIVES, resolve
from ropewalk.app.settings import Settings
from ropewalk.engine.tiered import TieredBackend
from ropewalk.ports import Archive, Backend, JournalReader


def tiered(settings: Settings, hot: Backend, journal: JournalReader) -> Backend:
    chosen = settings.archive
    if not chosen.archive_dir:
        return hot
    archive: Archive = resolve(ARCHIVES, "archive")(
        chosen.archive_dir, settings.journal.journal_shards, time.time, chosen.archive_refresh, journal
    )
    return TieredBackend(hot, archive, chosen.archive_replay_limit)
