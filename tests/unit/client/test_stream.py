"""A stream as the program holds it, with a session that only takes notes."""

import asyncio

import pytest

from ropewalk.client.errors import Ended, PresenceUnavailable, SubscriptionRejected
from ropewalk.client.events import Event, Message, PresenceChange, PresenceState, PresentMember
from ropewalk.client.inbox import EventInbox
from ropewalk.client.stream import Stream
from ropewalk.model.commands import Perform, Whisper
from ropewalk.model.presence import Member


class Notes:
    def __init__(self) -> None:
        self.taken: list[object] = []

    async def join(self, identifier: str, member: Member) -> None:
        self.taken.append(member)

    async def leave(self, identifier: str) -> None:
        self.taken.append("leave")

    async def presence(self, identifier: str) -> PresenceState:
        return PresenceState(0)

    async def say(self, command: Whisper | Perform) -> None:
        self.taken.append(command)

    async def unsubscribe(self, identifier: str) -> None:
        self.taken.append("unsubscribe")


def stream_of(notes: Notes, presence_events: bool = False) -> Stream:
    return Stream(notes, "i", EventInbox(10, lambda: None), presence_events)


async def events_of(stream: Stream) -> list[Event]:
    stream.finish(Ended("closed"))
    return [event async for event in stream]


async def test_what_the_program_says_becomes_commands() -> None:
    notes = Notes()
    stream = stream_of(notes)
    await stream.join("ann", {"n": 1})
    await stream.join("bob")
    await stream.whisper([1, 2])
    await stream.perform("speak", text="hi")
    await stream.leave()
    await stream.unsubscribe()
    assert notes.taken == [
        Member("ann", b'{"n":1}'),
        Member("bob"),
        Whisper("i", b"[1,2]"),
        Perform("i", '{"text":"hi","action":"speak"}'),
        "leave",
        "unsubscribe",
    ]


async def test_presence_changes_come_only_to_those_who_asked() -> None:
    change = PresenceChange(True, PresentMember("ann"))
    for wanted in (True, False):
        stream = stream_of(Notes(), wanted)
        stream.offer(change)
        stream.offer(Message(1, "a"))
        assert await events_of(stream) == ([change] if wanted else []) + [Message(1, "a")]


async def test_an_error_is_raised_after_what_had_arrived() -> None:
    stream = stream_of(Notes())
    stream.offer(Message(1, "a"))
    stream.confirm()
    stream.finish(SubscriptionRejected("i"))
    assert await anext(stream) == Message(1, "a")
    with pytest.raises(SubscriptionRejected):
        await anext(stream)
    with pytest.raises(SubscriptionRejected):
        await stream.until_live()


async def test_queries_are_answered_in_turn_and_an_end_answers_them_all() -> None:
    stream = stream_of(Notes())
    loop = asyncio.get_running_loop()
    first, given_up, third, fourth = queries = [loop.create_future() for _ in range(4)]
    stream.queries.extend(queries)
    given_up.cancel()
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
