"""The events between a connection and the reader of a stream."""

import asyncio

import pytest

from ropewalk.client.errors import Ended, Unauthorized
from ropewalk.client.events import Message
from ropewalk.client.stream import EventInbox


def make_inbox(size: int) -> tuple[EventInbox, list[str]]:
    calls: list[str] = []
    return EventInbox(size, lambda: calls.append("relieved")), calls


async def test_events_are_taken_in_order() -> None:
    inbox, _ = make_inbox(5)
    inbox.put([Message(1, "a")])
    inbox.put([Message(2, "a")])
    assert [await inbox.take(), await inbox.take()] == [Message(1, "a"), Message(2, "a")]


async def test_inbox_reports_when_it_is_no_longer_full() -> None:
    inbox, calls = make_inbox(2)
    inbox.put([Message(1, "a")])
    assert not inbox.full
    inbox.put([Message(2, "a")])
    assert inbox.full
    await inbox.take()
    assert calls == ["relieved"]
    assert not inbox.full
    await inbox.take()
    assert calls == ["relieved"]


async def test_events_before_the_end_are_delivered() -> None:
    inbox, _ = make_inbox(5)
    inbox.put([Message(1, "a")])
    inbox.finish(Unauthorized("unauthorized"))
    assert await inbox.take() == Message(1, "a")
    with pytest.raises(Unauthorized):
        await inbox.take()
    with pytest.raises(Unauthorized):
        await inbox.take()


async def test_first_error_is_kept() -> None:
    inbox, _ = make_inbox(5)
    inbox.finish(Unauthorized("unauthorized"))
    inbox.finish(Ended("closed"))
    with pytest.raises(Unauthorized):
        await inbox.take()


async def test_finished_inbox_is_not_full() -> None:
    inbox, calls = make_inbox(1)
    inbox.put([Message(1, "a")])
    inbox.finish(Ended("closed"))
    assert not inbox.full
    assert calls == ["relieved"]


async def test_waiting_reader_is_woken() -> None:
    inbox, _ = make_inbox(5)
    reader = asyncio.create_task(inbox.take())
    await asyncio.sleep(0)
    inbox.put([Message(1, "a")])
    assert await reader == Message(1, "a")
