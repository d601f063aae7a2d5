"""One HTTP session for each event loop, closed with its loop."""

import asyncio
import gc

import pytest
from aiohttp import ClientSession

from ropewalk.client.direct import SessionPerLoop


def test_loop_keeps_one_session_and_closes_it_at_its_end() -> None:
    sessions = SessionPerLoop()

    async def twice() -> ClientSession:
        first, second = await asyncio.gather(sessions.current(), sessions.current())
        assert first is second
        assert not first.closed
        return first

    one, another = asyncio.run(twice()), asyncio.run(twice())
    assert one is not another
    assert one.closed
    assert another.closed


async def test_closed_session_is_replaced() -> None:
    sessions = SessionPerLoop()
    first = await sessions.current()
    await sessions.close()
    assert first.closed
    assert not (await sessions.current()).closed
    await sessions.close()


async def test_close_without_a_session_is_allowed() -> None:
    await SessionPerLoop().close()


@pytest.mark.filterwarnings("ignore:Unclosed client session")
def test_sessions_of_closed_loops_are_removed() -> None:
    sessions = SessionPerLoop()
    for _ in range(3):
        loop = asyncio.new_event_loop()
        loop.run_until_complete(sessions.current())
        loop.close()
    assert len(sessions) == 1
    del loop, sessions
    gc.collect()  # the leftover session is in a cycle: its warning belongs to this test, not to a later one
