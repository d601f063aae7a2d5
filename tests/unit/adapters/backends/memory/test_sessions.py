"""Sessions in memory: their number and size are bounded, and the oldest are dropped first."""

import pytest

from ropewalk.adapters.backends.memory import MemoryBackend
from ropewalk.adapters.backends.memory.sessions import MemorySessions
from ropewalk.core.rules import Rulebook
from ropewalk.core.stats import Stats
from ropewalk.model.errors import LimitReached
from ropewalk.model.limits import STORE_LIMITS, StoreLimits
from ropewalk.model.refusals import Refusal
from ropewalk.model.rules import StreamRules
from ropewalk.model.sessions import SessionSnapshot, SessionWrite
from ropewalk.testing.clock import ManualClock

SNAPSHOT = SessionSnapshot("ids", {})


async def test_oldest_session_is_dropped_beyond_the_limit() -> None:
    backend = MemoryBackend(Rulebook(StreamRules()), ManualClock(), StoreLimits(sessions_limit=2))
    for sid in ("one", "two", "three"):
        await backend.sessions.save(sid, SessionSnapshot(sid, {}), 10)
    assert await backend.sessions.take("one") is None
    assert await backend.sessions.take("two") == SessionSnapshot("two", {})
    assert await backend.sessions.take("three") == SessionSnapshot("three", {})


async def test_session_larger_than_the_limit_is_refused() -> None:
    stats = Stats()
    backend = MemoryBackend(Rulebook(StreamRules()), ManualClock(), StoreLimits(max_session_size=4096), stats=stats)
    with pytest.raises(LimitReached):
        await backend.sessions.save("large", SessionSnapshot("x" * 4096, {}), 10)
    await backend.sessions.save("small", SessionSnapshot("x" * 2048, {}), 10)
    assert await backend.sessions.peek("large") is None
    assert await backend.sessions.peek("small") is not None
    assert backend.gauges()["sessions_kept_bytes"] < 4096


async def test_oldest_sessions_are_dropped_when_the_total_size_is_too_large() -> None:
    stats = Stats()
    backend = MemoryBackend(Rulebook(StreamRules()), ManualClock(), StoreLimits(max_sessions_size=10_000), stats=stats)
    for sid in ("a", "b", "c", "d", "e"):
        await backend.sessions.save(sid, SessionSnapshot(sid * 2000, {}), 10)
    assert backend.gauges()["sessions_kept_bytes"] <= 10_000
    left = [sid for sid in "abcde" if await backend.sessions.peek(sid) is not None]
    assert left == ["c", "d", "e"]
    assert [sid for sid, _ in await backend.sessions.take_expired(10)] == ["a", "b"]
    assert stats.refusals[Refusal.SESSIONS_FULL] == 2
    for sid in left:
        await backend.sessions.take(sid)
    assert backend.gauges()["sessions_kept_bytes"] == 0


async def test_expired_sessions_are_bounded_too() -> None:
    clock, stats = ManualClock(), Stats()
    backend = MemoryBackend(Rulebook(StreamRules()), clock, StoreLimits(max_sessions_size=10_000), stats=stats)
    for number in range(50):
        await backend.sessions.save(str(number), SessionSnapshot("x" * 2000, {}), 10)
        clock.advance(10)
        await backend.sweep()
    given = await backend.sessions.take_expired(100)
    assert (len(given), stats.app_disconnects_dropped) == (4, 46)


async def test_every_session_is_returned_at_shutdown_when_as_many_have_expired_as_are_kept() -> None:
    clock, stats = ManualClock(), Stats()
    backend = MemoryBackend(Rulebook(StreamRules()), clock, StoreLimits(sessions_limit=3), stats=stats)
    for number in range(6):
        await backend.sessions.save(str(number), SessionSnapshot("ids", {}), 10)
    ended = await backend.sessions.take_abandoned()
    assert sorted(sid for sid, _ in ended) == ["0", "1", "2", "3", "4", "5"]
    assert stats.app_disconnects_dropped == 0


def test_node_that_has_just_taken_a_session_revokes_it_itself() -> None:
    """Only that node knows whether its application already knows the session."""
    sessions = MemorySessions(ManualClock(), STORE_LIMITS, Stats(), lambda node, notice: None)
    sessions.write("one", SessionWrite("old", SNAPSHOT, 1, 60.0, began=1.0))
    assert sessions.take("two", "old", "new") == SNAPSHOT
    assert sessions.revoke("ids", True, without={"two"}) == []
    assert sessions.revoke("ids", True, without={"one"}) == [("new", SNAPSHOT)]
