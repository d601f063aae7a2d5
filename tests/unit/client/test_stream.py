"""The public object of a stream, with a session that records its calls."""

import asyncio

import pytest

from ropewalk.client.errors import Ended, PresenceUnavailable, SubscriptionRejected
from ropewalk.client.events import Event, Message, PresenceChange, PresenceState, PresentMember
from ropewalk.client.stream import EventInbox, Stream
from ropewalk.model.commands import Perform, Whisper
from ropewalk.model.presence import Member


class RecordingSession:
    def __init__(self) -> None:
        self.calls: list[object] = []

    async def join(self, identifier: str, member: Member) -> None:
        self.calls.append(member)

    async def leave(self, identifier: str) -> None:
        self.calls.append("leave")

    async def presence(self, identifier: str) -> PresenceState:
        return PresenceState(0)

    async def send_command(self, command: Whisper | Perform) -> None:
        self.calls.append(command)

    async def unsubscribe(self, identifier: str) -> None:
        self.calls.append("unsubscribe")


def make_stream(session: RecordingSession, presence_events: bool = False) -> Stream:
    return Stream(session, "i", EventInbox(10, lambda: None), presence_events)


async def read_events(stream: Stream) -> list[Event]:
    stream.finish(Ended("closed"))
    return [event async for event in stream]


async def test_methods_become_commands() -> None:
    session = RecordingSession()
    stream = make_stream(session)
    await stream.join("ann", {"n": 1})
    await stream.join("bob")
    await stream.whisper([1, 2])
    await stream.perform("speak", text="hi")
    await stream.leave()
    await stream.unsubscribe()
    assert session.calls == [
        Member("ann", b'{"n":1}'),
        Member("bob"),
        Whisper("i", b"[1,2]"),
        Perform("i", '{"text":"hi","action":"speak"}'),
        "leave",
        "unsubscribe",
    ]


async def test_presence_events_are_delivered_only_if_requested() -> None:
    change = PresenceChange(True, PresentMember("ann"))
    for wanted in (True, False):
        stream = make_stream(RecordingSession(), wanted)
        stream.offer([change])
        stream.offer([Message(1, "a")])
        assert await read_events(stream) == ([change] if wanted else []) + [Message(1, "a")]


async def test_error_is_raised_after_the_received_events() -> None:
    stream = make_stream(RecordingSession())
    stream.offer([Message(1, "a")])
    stream.confirm()
    stream.finish(SubscriptionRejected("i"))
    assert await anext(stream) == Message(1, "a")
    with pytest.raises(SubscriptionRejected):
        await anext(stream)
    with pytest.raises(SubscriptionRejected):
        await stream.until_live()


async def test_queries_are_answered_in_order_and_fail_at_the_end() -> None:
    stream = make_stream(RecordingSession())
    loop = asyncio.get_running_loop()
    first, cancelled, third, fourth = queries = [loop.create_future() for _ in range(4)]
    stream.queries.extend(queries)
    cancelled.cancel()
    stream.answer(PresenceState(1))
    stream.answer(PresenceState(2))
    stream.answer(None)
    assert await first == PresenceState(1)
    with pytest.raises(PresenceUnavailable):
        await third
    stream.confirm()
    stream.finish(Ended("closed"))
    with pytest.raises(Ended):
        await fourth
