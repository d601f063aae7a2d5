"""Makes the backend that the settings choose."""

import time
from math import inf

from ropewalk.app.journal import RecoveringBackend, StoredJournal
from ropewalk.app.registry import BACKENDS, resolve
from ropewalk.app.settings import Settings
from ropewalk.core.rules import Rulebook
from ropewalk.core.stats import Stats

IDLE_FACTOR = 10.0  # history TTLs for which a stream that lives in memory only is remembered


def backend_of(settings: Settings, rules: Rulebook, journal: StoredJournal, stats: Stats) -> RecoveringBackend:
    return _memory(settings, rules, journal, stats)


def _memory(settings: Settings, rules: Rulebook, journal: StoredJournal, stats: Stats) -> RecoveringBackend:
    kept = bool(settings.journal.data_dir)
    backend: RecoveringBackend = resolve(BACKENDS, "memory")(
        rules,
        time.time,
        dedup_ttl=settings.broker.dedup_ttl,
        dedup_limit=settings.broker.dedup_limit,
        max_session_size=settings.limits.max_session_size,
        max_sessions_size=settings.limits.max_sessions_size,
        journal=journal if kept else None,
        stats=stats,
        # What is written down is not lost by being idle, so its epoch must not change: the journal keeps every tip anyway.
        idle_factor=inf if kept else IDLE_FACTOR,
    )
    return backend
