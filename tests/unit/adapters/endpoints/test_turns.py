"""Turns: work of many connections is done in small pieces, so that all others are served in between."""

import asyncio
from functools import partial
from typing import Any

from ropewalk.adapters.endpoints.turns import BURST_SECONDS, FREE_SECONDS, TURN_SECONDS, LoopTurns, PacedStarts


class Work:
    """Waits for so many turns."""

    def __init__(self, name: str, turns: LoopTurns, done: list[str], times: int = 1, seconds: float = 0.0) -> None:
        self._name, self._turns, self._done, self._times, self._seconds = name, turns, done, times, seconds
        turns.wait(self)

    def take_turn(self) -> float:
        self._done.append(self._name)
        self._times -= 1
        if self._times:
            self._turns.wait(self)
        return self._seconds


async def test_turns_are_taken_one_at_a_time_in_round_robin() -> None:
    turns, done = LoopTurns(), list[str]()
    Work("a", turns, done, times=3)
    Work("b", turns, done)
    Work("c", turns, done, times=2)
    seen = []
    while len(done) < 6:
        await asyncio.sleep(0)
        seen.append(len(done))
    assert done == ["a", "b", "c", "a", "c", "a"]
    assert seen == [1, 2, 3, 4, 5, 6]


async def test_failed_turn_does_not_block_the_next() -> None:
    class Failing:
        def take_turn(self) -> float:
            raise ValueError

    turns, done = LoopTurns(), list[str]()
    errors: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    turns.wait(Failing())
    Work("b", turns, done)
    for _ in range(3):
        await asyncio.sleep(0)
    assert done == ["b"]
    assert len(errors) == 1


async def test_requested_pause_delays_all_others() -> None:
    turns, done = LoopTurns(), list[str]()
    Work("a", turns, done, seconds=BURST_SECONDS / 2)
    Work("b", turns, done, seconds=60.0)
    Work("c", turns, done)
    for _ in range(100):
        await asyncio.sleep(0)
    assert done == ["a", "b"]


async def test_work_without_a_turn_shares_the_time_of_one_turn() -> None:
    turns = LoopTurns()
    turns.worked(TURN_SECONDS / 4)
    turns.worked(TURN_SECONDS / 4)
    assert turns.left == TURN_SECONDS / 2
    turns.worked(TURN_SECONDS)
    assert turns.left < 0
    await asyncio.sleep(0)
    assert turns.left == TURN_SECONDS
    turns.worked(TURN_SECONDS)
    assert turns.left == 0


async def test_short_work_takes_no_time_from_others() -> None:
    turns = LoopTurns()
    for _ in range(1000):
        turns.worked(FREE_SECONDS)
    assert turns.left == TURN_SECONDS


async def test_starts_share_a_turn_until_it_is_used_up() -> None:
    now, started = [0.0], list[int]()
    starts = PacedStarts(LoopTurns(lambda: now[0]))

    def start(number: int) -> None:
        started.append(number)
        now[0] += TURN_SECONDS / 3
        if number == 0:
            starts.put(lambda: started.append(99))

    for number in range(7):
        starts.put(partial(start, number))
    counts = []
    for _ in range(3):
        await asyncio.sleep(0)
        counts.append(len(started))
    assert counts == [3, 6, 8]
    assert started == [*range(7), 99]


async def test_failed_start_does_not_block_the_next() -> None:
    starts, started = PacedStarts(LoopTurns()), list[int]()
    errors: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    starts.put(lambda: [][0])
    starts.put(lambda: started.append(1))
    for _ in range(3):
        await asyncio.sleep(0)
    assert started == [1]
    assert len(errors) == 1
