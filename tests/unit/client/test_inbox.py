"""What waits for the reader of a stream."""

import asyncio

import pytest

from ropewalk.client.errors import Ended, Unauthorized
from ropewalk.client.events import Message
from ropewalk.client.inbox import EventInbox


def inbox_of(size: int) -> tuple[EventInbox, list[str]]:
    calls: list[str] = []
    return EventInbox(size, lambda: calls.append("relieved")), calls


async def test_events_come_out_in_order() -> None:
    inbox, _ = inbox_of(5)
    inbox.put(Message(1, "a"))
    inbox.put(Message(2, "a"))
    assert [await inbox.take(), await inbox.take()] == [Message(1, "a"), Message(2, "a")]


async def test_it_says_when_it_is_full_and_when_it_no_longer_is() -> None:
    inbox, calls = inbox_of(2)
    inbox.put(Message(1, "a"))
    assert not inbox.full
    inbox.put(Message(2, "a"))
    assert inbox.full
    await inbox.take()
    assert calls == ["relieved"]
    assert not inbox.full
    await inbox.take()
    assert calls == ["relieved"]


async def test_what_arrived_before_the_end_is_still_read() -> None:
    inbox, _ = inbox_of(5)
    inbox.put(Message(1, "a"))
    inbox.finish(Unauthorized("unauthorized"))
    assert await inbox.take() == Message(1, "a")
    with pytest.raises(Unauthorized):
        await inbox.take()
    with pytest.raises(Unauthorized):
        await inbox.take()


async def test_the_first_end_counts() -> None:
    inbox, _ = inbox_of(5)
    inbox.finish(Unauthorized("unauthorized"))
    inbox.finish(Ended("closed"))
    with pytest.raises(Unauthorized):
        await inbox.take()


async def test_a_finished_inbox_holds_nobody_up() -> None:
    inbox, calls = inbox_of(1)
    inbox.put(Message(1, "a"))
    inbox.finish(Ended("closed"))
    assert not inbox.full
    assert calls == ["relieved"]


async def test_a_reader_that_waits_is_woken() -> None:
    inbox, _ = inbox_of(5)
    reader = asyncio.create_task(inbox.take())
    await asyncio.sleep(0)
    inbox.put(Message(1, "a"))
    assert await reader == Message(1, "a")
