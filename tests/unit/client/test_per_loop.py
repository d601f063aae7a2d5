"""A session for each event loop, and its end."""

import asyncio

import pytest
from aiohttp import ClientSession

from ropewalk.client.per_loop import SessionPerLoop


def test_a_loop_keeps_its_session_and_closes_it_when_it_ends() -> None:
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


async def test_a_closed_session_is_followed_by_a_new_one() -> None:
    sessions = SessionPerLoop()
    first = await sessions.current()
    await sessions.close()
    assert first.closed
    assert not (await sessions.current()).closed
    await sessions.close()


async def test_closing_what_was_never_opened_is_no_mistake() -> None:
    await SessionPerLoop().close()


@pytest.mark.filterwarnings("ignore:Unclosed client session")
def test_loops_that_ended_without_a_word_are_forgotten() -> None:
    sessions = SessionPerLoop()
    for _ in range(3):
        loop = asyncio.new_event_loop()
        loop.run_until_complete(sessions.current())
        loop.close()
    assert len(sessions) == 1
