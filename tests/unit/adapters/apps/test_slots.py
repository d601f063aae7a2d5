"""Slots of calls to the application: their number, and a queue that is bounded in length and in time."""

import asyncio

import pytest

from ropewalk.adapters.apps.slots import NoSlot, Slots, StillWanted, always
from ropewalk.core.stats import Stats
from ropewalk.model.refusals import Refusal
from tests.unit.adapters.apps.rpc.manual_time import ManualTime
from tests.waiting import settle


class Rig:
    def __init__(self, size: int, max_wait: float = 5.0, queue_limit: int = 10) -> None:
        self.time = ManualTime()
        self.max_wait = max_wait
        self.stats = Stats()
        self.slots = Slots(
            size,
            self.stats,
            max_wait=lambda: self.max_wait,
            clock=self.time.clock,
            sleep=self.time.sleep,
            queue_limit=queue_limit,
        )

    async def call(self, wanted: StillWanted = always) -> asyncio.Task[None]:
        """Begin to acquire a slot."""
        task = asyncio.create_task(self.slots.acquire(wanted))
        await settle()
        return task

    @property
    def counts(self) -> tuple[int, int, int]:
        """Active, waiting and refused calls."""
        return self.slots.active, self.slots.waiting, self.stats.refusals[Refusal.APP_QUEUE]


async def test_calls_beyond_the_slots_wait_and_get_theirs_in_order() -> None:
    rig = Rig(2)
    calls = [await rig.call() for _ in range(5)]
    for done in (2, 3, 4, 5):
        assert [call.done() for call in calls] == [True] * done + [False] * (5 - done)
        assert rig.counts == (2, 5 - done, 0)
        rig.slots.release()
        await settle()
    rig.slots.release()
    assert rig.counts == (0, 0, 0)


async def test_full_queue_refuses_calls() -> None:
    rig = Rig(1, queue_limit=1)
    calls = [await rig.call() for _ in range(3)]
    with pytest.raises(NoSlot, match="full"):
        calls[2].result()
    assert rig.counts == (1, 1, 1)
    rig.slots.release()
    await calls[1]


async def test_each_call_waits_at_most_the_limit() -> None:
    rig = Rig(1)
    await rig.call()
    early = await rig.call()
    await rig.time.advance(3.0)
    late = await rig.call()
    await rig.time.advance(1.9)
    assert not early.done()
    await rig.time.advance(0.1)
    with pytest.raises(NoSlot, match="timeout in the queue"):
        early.result()
    await rig.time.advance(2.9)
    assert not late.done()
    await rig.time.advance(0.1)
    with pytest.raises(NoSlot, match="timeout in the queue"):
        late.result()
    assert rig.counts == (1, 0, 2)


async def test_shorter_limit_applies_to_waiting_calls_after_a_recheck() -> None:
    rig = Rig(1)
    await rig.call()
    early = await rig.call()
    await rig.time.advance(2.0)
    late = await rig.call()
    rig.max_wait = 1.0
    rig.slots.recheck()
    await settle()
    assert (early.done(), late.done()) == (True, False)
    await rig.time.advance(1.0)
    assert rig.counts == (1, 0, 2)
    for call in (early, late):
        with pytest.raises(NoSlot):
            call.result()


async def test_slot_of_a_cancelled_or_unwanted_call_goes_to_the_next() -> None:
    for cancelled_before in (True, False):
        rig = Rig(1)
        await rig.call()
        gone, unwanted, last = await rig.call(), await rig.call(lambda: False), await rig.call()
        if cancelled_before:
            gone.cancel()
            await settle()
            rig.slots.release()
        else:
            rig.slots.release()
            gone.cancel()  # in the tick in which it gets the slot
        await last
        assert gone.cancelled()
        with pytest.raises(NoSlot, match="the caller is gone"):
            unwanted.result()
        assert rig.counts == (1, 0, 0)
        rig.slots.release()
        assert rig.counts == (0, 0, 0)
