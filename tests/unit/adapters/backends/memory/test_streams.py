"""Streams in memory: when idle ones are removed, and how changed rules take effect."""

import asyncio
from math import inf

from ropewalk.adapters.backends.memory import MemoryBackend
from ropewalk.adapters.backends.memory.streams import SWEPT_AT_ONCE
from ropewalk.core.rules import Rulebook
from ropewalk.model.limits import StoreLimits
from ropewalk.model.messages import Position, Publication
from ropewalk.model.rules import StreamRule, StreamRules
from ropewalk.testing.clock import ManualClock


def make_backend(clock: ManualClock, idle_factor: float = 10.0) -> MemoryBackend:
    rulebook = Rulebook(StreamRules(history_ttl=100.0), [StreamRule("none", history_limit=0, history_ttl=0.0)])
    return MemoryBackend(rulebook, clock, StoreLimits(dedup_ttl=20.0, idle_factor=idle_factor))


async def test_stream_is_removed_after_its_idle_time() -> None:
    clock = ManualClock()
    backend = make_backend(clock)
    await backend.streams.append([Publication("some", b"1"), Publication("none", b"1")])
    left = []
    for pause in (299, 1, 699, 1):
        clock.advance(pause)
        await backend.sweep()
        left.append([summary.stream for summary in await backend.streams.summaries("", 10)])
    assert left == [["none", "some"], ["some"], ["some"], []]


async def test_stream_in_use_is_not_removed() -> None:
    clock = ManualClock()
    backend = make_backend(clock)
    for _ in range(50):
        await backend.streams.append([Publication("a", b"1")])
        clock.advance(900)
        await backend.sweep()
    assert (await backend.streams.tip("a")).offset == 50


async def test_stream_with_infinite_idle_factor_is_never_removed() -> None:
    clock = ManualClock()
    backend = make_backend(clock, idle_factor=inf)
    [first] = await backend.streams.append([Publication("a", b"1")])
    for _ in range(2):
        clock.advance(10_000_000)
        await backend.sweep()
    assert await backend.streams.tip("a") == Position(first.epoch, 1)


async def left_after_each_turn(backend: MemoryBackend, gauge: str) -> list[float]:
    """What one sweep leaves after each turn of the event loop."""
    sweeping = asyncio.ensure_future(backend.sweep())
    left = [backend.gauges()[gauge]]
    while not sweeping.done():
        await asyncio.sleep(0)
        if backend.gauges()[gauge] != left[-1]:
            left.append(backend.gauges()[gauge])
    return left


async def test_one_sweep_removes_all_streams_that_are_due_in_slices() -> None:
    clock = ManualClock()
    backend = make_backend(clock)
    count = 3 * SWEPT_AT_ONCE + 10
    await backend.streams.append([Publication(f"stream/{number}", b"1") for number in range(count)])
    slices = [count, count - SWEPT_AT_ONCE, count - 2 * SWEPT_AT_ONCE, 10, 0]
    clock.advance(100)
    assert await left_after_each_turn(backend, "history_messages") == slices
    clock.advance(900)
    assert await left_after_each_turn(backend, "streams") == slices


async def test_one_sweep_removes_all_uids_that_are_due_in_slices() -> None:
    clock = ManualClock()
    backend = make_backend(clock)
    await backend.streams.append([Publication("a", b"1", uid=str(number)) for number in range(2 * SWEPT_AT_ONCE)])
    clock.advance(20)
    assert await left_after_each_turn(backend, "dedup_keys") == [2 * SWEPT_AT_ONCE, SWEPT_AT_ONCE, 0]


async def test_changed_rules_reach_every_stream_and_keep_positions() -> None:
    clock = ManualClock()
    rulebook = Rulebook(StreamRules(history_limit=3, history_ttl=100.0))
    backend = MemoryBackend(rulebook, clock)
    names = [f"stream/{number}" for number in range(SWEPT_AT_ONCE + 1)]
    for _ in range(3):
        await backend.streams.append([Publication(name, b"1") for name in names])
    rulebook.replace(StreamRules(history_limit=1, history_ttl=100.0))
    backend.reload_rules()
    assert await left_after_each_turn(backend, "history_messages") == [3 * len(names), SWEPT_AT_ONCE + 3, len(names)]
    [registered] = await backend.streams.append([Publication(names[0], b"1")])
    assert registered.offset == 4


async def test_history_switched_off_and_on_starts_at_the_current_offset() -> None:
    clock = ManualClock()
    rulebook = Rulebook(StreamRules(history_limit=3, history_ttl=100.0))
    backend = MemoryBackend(rulebook, clock)

    async def publish_under(limit: int) -> tuple[int, int]:
        """The oldest kept offset and the tip, after one more publication."""
        rulebook.replace(StreamRules(history_limit=limit, history_ttl=100.0))
        backend.reload_rules()
        await backend.sweep()
        await backend.streams.append([Publication("a", b"1")])
        page = await backend.streams.page("a", 0, 10)
        assert page is not None
        assert [message.offset for message in page.messages] == list(range(page.oldest, page.tip + 1))
        return page.oldest, page.tip

    assert [await publish_under(limit) for limit in (3, 0, 2, 2, 2)] == [(1, 1), (3, 2), (3, 3), (3, 4), (4, 5)]
