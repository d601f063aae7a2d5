"""The memory backend's own promises: it never suspends, keeps idle streams as long as it says, and bounds its sessions."""

from collections.abc import Coroutine
from math import inf

import pytest

from ropewalk.adapters.backends.memory import MemoryBackend, random_epoch
from ropewalk.adapters.backends.memory.streams import SWEPT_AT_ONCE
from ropewalk.core.rules import Rulebook
from ropewalk.core.stats import Stats
from ropewalk.model.errors import LimitReached
from ropewalk.model.messages import Position, Publication
from ropewalk.model.refusals import Refusal
from ropewalk.model.rules import StreamRule, StreamRules
from ropewalk.model.sessions import SessionSnapshot
from ropewalk.testing.clock import ManualClock


def backend_of(clock: ManualClock, sessions_limit: int = 10, idle_factor: float = 10.0) -> MemoryBackend:
    rulebook = Rulebook(StreamRules(history_ttl=100.0), [StreamRule("none", history_limit=0, history_ttl=0.0)])
    return MemoryBackend(rulebook, clock, dedup_ttl=20.0, idle_factor=idle_factor, sessions_limit=sessions_limit)


def suspends(step: Coroutine[None, None, object]) -> bool:
    try:
        step.send(None)
    except StopIteration:
        return False
    step.close()
    return True


def test_no_step_suspends_so_each_is_atomic_on_its_event_loop() -> None:
    backend = backend_of(ManualClock())
    steps: list[Coroutine[None, None, object]] = [
        backend.streams.append([Publication("a", b"1", uid="u"), Publication("a", b"2")]),
        backend.streams.replay("a", Position("", 0)),
        backend.streams.since("a", 0.0),
        backend.streams.tip("a"),
        backend.sessions.save("sid", SessionSnapshot("", {}), 1.0),
        backend.sessions.peek("sid"),
        backend.sessions.revoke("nobody"),
        backend.sessions.take("sid"),
        backend.presence.expire(),
        backend.sweep(),
    ]
    assert [suspends(step) for step in steps] == [False] * len(steps)


async def test_a_stream_is_forgotten_exactly_when_it_was_idle_for_its_time() -> None:
    clock = ManualClock()
    backend = backend_of(clock)
    await backend.streams.append([Publication("some", b"1"), Publication("none", b"1")])
    left = []
    for pause in (299, 1, 699, 1):
        clock.advance(pause)
        await backend.sweep()
        left.append([summary.stream for summary in await backend.streams.summaries("", 10)])
    assert left == [["none", "some"], ["some"], ["some"], []]


async def test_a_stream_in_use_is_not_forgotten_however_old_it_is() -> None:
    clock = ManualClock()
    backend = backend_of(clock)
    for _ in range(50):
        await backend.streams.append([Publication("a", b"1")])
        clock.advance(900)
        await backend.sweep()
    assert (await backend.streams.tip("a")).offset == 50


async def test_a_stream_whose_record_is_kept_elsewhere_is_never_forgotten() -> None:
    clock = ManualClock()
    backend = backend_of(clock, idle_factor=inf)
    [first] = await backend.streams.append([Publication("a", b"1")])
    for _ in range(2):
        clock.advance(10_000_000)
        await backend.sweep()
    assert await backend.streams.tip("a") == Position(first.epoch, 1)


async def test_one_sweep_looks_at_a_bounded_number_of_streams() -> None:
    clock = ManualClock()
    backend = backend_of(clock)
    await backend.streams.append([Publication(f"stream/{number}", b"1") for number in range(SWEPT_AT_ONCE + 10)])
    clock.advance(100)
    await backend.sweep()
    assert backend.gauges()["history_messages"] == 10
    await backend.sweep()
    assert backend.gauges()["history_messages"] == 0


async def test_more_sessions_than_allowed_push_out_the_oldest() -> None:
    backend = backend_of(ManualClock(), sessions_limit=2)
    for sid in ("one", "two", "three"):
        await backend.sessions.save(sid, SessionSnapshot(sid, {}), 10)
    assert await backend.sessions.take("one") is None
    assert await backend.sessions.take("two") == SessionSnapshot("two", {})
    assert await backend.sessions.take("three") == SessionSnapshot("three", {})


def test_epochs_are_eight_url_safe_characters_and_differ() -> None:
    epochs = {random_epoch() for _ in range(100)}
    assert len(epochs) == 100
    assert all(len(epoch) == 8 and epoch.replace("-", "_").replace("_", "a").isalnum() for epoch in epochs)


async def test_a_session_larger_than_allowed_is_not_kept() -> None:
    stats = Stats()
    backend = MemoryBackend(Rulebook(StreamRules()), ManualClock(), max_session_size=4096, stats=stats)
    with pytest.raises(LimitReached):
        await backend.sessions.save("large", SessionSnapshot("x" * 4096, {}), 10)
    await backend.sessions.save("small", SessionSnapshot("x" * 2048, {}), 10)
    assert await backend.sessions.peek("large") is None
    assert await backend.sessions.peek("small") is not None
    assert backend.gauges()["sessions_kept_bytes"] < 4096


async def test_the_oldest_sessions_give_way_when_all_together_are_too_large() -> None:
    stats = Stats()
    backend = MemoryBackend(Rulebook(StreamRules()), ManualClock(), max_sessions_size=10_000, stats=stats)
    for sid in ("a", "b", "c", "d", "e"):
        await backend.sessions.save(sid, SessionSnapshot(sid * 2000, {}), 10)
    assert backend.gauges()["sessions_kept_bytes"] <= 10_000
    left = [sid for sid in "abcde" if await backend.sessions.peek(sid) is not None]
    assert left == ["c", "d", "e"]
    assert [sid for sid, _ in await backend.sessions.expired(10)] == ["a", "b"]
    assert stats.refusals[Refusal.SESSIONS_FULL] == 2
    for sid in left:
        await backend.sessions.take(sid)
    assert backend.gauges()["sessions_kept_bytes"] == 0


async def test_sessions_that_are_over_and_not_asked_for_are_bounded_too() -> None:
    clock, stats = ManualClock(), Stats()
    backend = MemoryBackend(Rulebook(StreamRules()), clock, max_sessions_size=10_000, stats=stats)
    for number in range(50):
        await backend.sessions.save(str(number), SessionSnapshot("x" * 2000, {}), 10)
        clock.advance(10)
        await backend.sweep()
    given = await backend.sessions.expired(100)
    assert (len(given), stats.app_disconnects_dropped) == (4, 46)


async def test_changed_rules_reach_every_stream_by_and_by_and_cost_no_position() -> None:
    clock = ManualClock()
    rulebook = Rulebook(StreamRules(history_limit=3, history_ttl=100.0))
    backend = MemoryBackend(rulebook, clock)
    names = [f"stream/{number}" for number in range(SWEPT_AT_ONCE + 1)]
    for _ in range(3):
        await backend.streams.append([Publication(name, b"1") for name in names])
    rulebook.replace(StreamRules(history_limit=1, history_ttl=100.0))
    backend.rules_changed()
    await backend.sweep()
    assert backend.gauges()["history_messages"] == SWEPT_AT_ONCE + 3
    await backend.sweep()
    assert backend.gauges()["history_messages"] == len(names)
    [registered] = await backend.streams.append([Publication(names[0], b"1")])
    assert registered.offset == 4


async def test_history_that_is_switched_off_and_on_again_begins_where_the_stream_is() -> None:
    clock = ManualClock()
    rulebook = Rulebook(StreamRules(history_limit=3, history_ttl=100.0))
    backend = MemoryBackend(rulebook, clock)

    async def publish_under(limit: int) -> tuple[int, int]:
        """The oldest offset that is kept, and the tip, after one more publication."""
        rulebook.replace(StreamRules(history_limit=limit, history_ttl=100.0))
        backend.rules_changed()
        await backend.sweep()
        await backend.streams.append([Publication("a", b"1")])
        page = await backend.streams.page("a", 0, 10)
        assert page is not None
        assert [message.offset for message in page.messages] == list(range(page.oldest, page.tip + 1))
        return page.oldest, page.tip

    assert [await publish_under(limit) for limit in (3, 0, 2, 2, 2)] == [(1, 1), (3, 2), (3, 3), (3, 4), (4, 5)]
