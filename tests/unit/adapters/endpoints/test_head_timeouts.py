"""One timer for all connections that have not said yet what they want."""

import asyncio

from ropewalk.adapters.endpoints.head_timeouts import HeadTimeouts

Late = asyncio.Queue["Silent"]


class Silent:
    def __init__(self, late: Late) -> None:
        self._late = late

    def time_out(self) -> None:
        self._late.put_nowait(self)


async def test_those_who_say_nothing_time_out_in_their_order_and_the_others_do_not() -> None:
    late: Late = asyncio.Queue()
    timeouts = HeadTimeouts(0.01)
    first, spoke, second = Silent(late), Silent(late), Silent(late)
    for each in (first, spoke, second):
        timeouts.begin(each)
    timeouts.end(spoke)
    assert [await late.get(), await late.get()] == [first, second]
    assert late.empty()


async def test_the_timer_goes_on_for_those_who_came_after_the_one_it_was_set_for() -> None:
    late: Late = asyncio.Queue()
    timeouts = HeadTimeouts(0.01)
    spoke, silent = Silent(late), Silent(late)
    timeouts.begin(spoke)
    await asyncio.sleep(0)
    timeouts.begin(silent)
    timeouts.end(spoke)
    assert await late.get() is silent


async def test_it_begins_again_after_nobody_was_left() -> None:
    late: Late = asyncio.Queue()
    timeouts = HeadTimeouts(0.0)
    first, second = Silent(late), Silent(late)
    timeouts.begin(first)
    assert await late.get() is first
    timeouts.begin(second)
    assert await late.get() is second


async def test_one_that_ended_may_end_again_and_one_that_never_began_may_end() -> None:
    late: Late = asyncio.Queue()
    timeouts = HeadTimeouts(60.0)
    silent = Silent(late)
    timeouts.begin(silent)
    timeouts.end(silent)
    timeouts.end(silent)
    timeouts.end(Silent(late))
    assert late.empty()
