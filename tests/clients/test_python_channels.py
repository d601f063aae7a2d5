"""The chat example with Python channels, used with both JavaScript libraries at once."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.clients.script import Client, Script
from tests.server import RunningServer, running_server

pytestmark = pytest.mark.needs_node

CHAT = Path(__file__).parents[2] / "examples" / "chat_channels"


@pytest.fixture(scope="module")
def chat() -> Iterator[RunningServer]:
    with running_server("--app", "chat:app", "--app_dir", str(CHAT)) as server:
        yield server


@pytest.fixture
def room(request: pytest.FixtureRequest) -> str:
    """A room per test."""
    return str(request.node.name).removeprefix("test_").replace("_", "-")[:40]


def address(server: RunningServer, name: str) -> str:
    return f"{server.cable}?{urlencode({'name': name})}"


async def enter(script: Script, server: RunningServer, name: str, room: str) -> Client:
    """A client of `@anycable/core` in the room."""
    client = await script.connect(name, address(server, name))
    await client.subscribe("room", kind="ChatChannel", params={"room": room})
    return client


async def enter_by_page(script: Script, server: RunningServer, name: str, room: str) -> Client:
    """A client of `@rails/actioncable` in the room."""
    client = await script.open(name, address(server, name))
    await client.subscribe("room", params={"channel": "ChatChannel", "room": room})
    return client


async def chat_messages(script: Script, client: Client, count: int, channel: str = "room") -> list[object]:
    """The chat messages of the room, once there are that many. In `@rails/actioncable` joins and leaves are messages too."""

    def said() -> list[object]:
        messages = [event["message"] for event in client.all("message", channel=channel)]
        return [message for message in messages if "name" in message]

    await script.until(lambda: len(said()) >= count, f"{client.name} gets {count} messages")
    return said()


async def marked(script: Script, client: Client, mark: str, count: int) -> list[object]:
    """The messages with this marker of the server, once there are that many."""

    def found() -> list[object]:
        messages = [event["message"] for event in client.all("message", channel="room")]
        return [message for message in messages if mark in message]

    await script.until(lambda: len(found()) >= count, f"{client.name} gets {count} of {mark}")
    return found()


async def members(client: Client) -> dict[str, Any]:
    """The members, by the first request of the client."""
    await client.order("members", channel="room")
    await client.sees("members")
    answer = next(frame["message"] for frame in client.frames("presence") if frame["message"]["type"] == "info")
    return {record["id"]: record.get("info") for record in answer["records"]}


async def speak(client: Client, text: str) -> None:
    await client.order("perform", channel="room", action="speak", data={"text": text})


def said(name: str, text: str, number: int) -> object:
    return {"name": name, "text": text, "number": number}


async def test_messages_of_either_library_reach_both(anycable: Script, rails: Script, chat: RunningServer, room: str) -> None:
    ann = await enter(anycable, chat, "Ann", room)
    bo = await enter_by_page(rails, chat, "Bo", room)

    await speak(ann, "hello")
    await chat_messages(rails, bo, 1)
    await speak(bo, "hello, Ann")
    await chat_messages(anycable, ann, 2)
    await speak(ann, "how are you?")

    conversation = [said("Ann", "hello", 1), said("Bo", "hello, Ann", 1), said("Ann", "how are you?", 2)]
    assert await chat_messages(anycable, ann, 3) == conversation
    assert await chat_messages(rails, bo, 3) == conversation


async def test_client_without_a_name_is_rejected(anycable: Script, rails: Script, chat: RunningServer) -> None:
    unnamed = await anycable.open("unnamed", chat.cable)
    page = await rails.open("page", chat.cable)
    await page.order("subscribe", channel="room", params={"channel": "ChatChannel", "room": "lobby"})

    assert (await unnamed.sees("close"))["reason"] == "unauthorized"
    await page.sees("disconnect", willAttemptReconnect=False)
    assert page.frames() == [{"type": "disconnect", "reason": "unauthorized", "reconnect": False}]


async def test_unknown_room_is_rejected_and_other_subscriptions_stay(
    anycable: Script, rails: Script, chat: RunningServer, room: str
) -> None:
    ann = await enter(anycable, chat, "Ann", room)
    bo = await enter_by_page(rails, chat, "Bo", room)

    await ann.order("subscribe", channel="cellar", kind="ChatChannel", params={"room": "The Cellar"})
    await bo.order("subscribe", channel="cellar", params={"channel": "ChatChannel", "room": "The Cellar"})

    assert (await ann.sees("channel_close", channel="cellar"))["error"] == "SubscriptionRejectedError"
    await bo.sees("rejected", channel="cellar")
    await speak(ann, "the cellar is closed")
    assert await chat_messages(rails, bo, 1) == [said("Ann", "the cellar is closed", 1)]


async def test_refused_and_unknown_actions_have_no_effect(
    anycable: Script, rails: Script, chat: RunningServer, room: str
) -> None:
    ann = await enter(anycable, chat, "Ann", room)
    bo = await enter_by_page(rails, chat, "Bo", room)

    for script, client in ((anycable, ann), (rails, bo)):
        await speak(client, "")
        for action in ("unsubscribed", "sing"):
            await client.order("perform", channel="room", action=action, data={})
        await speak(client, "done")
        await chat_messages(script, client, 1)

    assert await chat_messages(anycable, ann, 2) == [said("Ann", "done", 1), said("Bo", "done", 1)]


async def test_unsubscribed_client_has_left_and_gets_no_more_messages(
    anycable: Script, rails: Script, chat: RunningServer, room: str
) -> None:
    ann = await enter(anycable, chat, "Ann", room)
    bo = await enter_by_page(rails, chat, "Bo", room)

    await bo.order("unsubscribe", channel="room")
    assert await chat_messages(anycable, ann, 1) == [{"name": "Bo", "event": "left"}]
    await speak(ann, "alone at last")
    await chat_messages(anycable, ann, 2)
    await bo.subscribe("again", params={"channel": "ChatChannel", "room": room})
    await speak(ann, "welcome")

    assert await chat_messages(rails, bo, 1, "again") == [said("Ann", "welcome", 2)]
    assert await chat_messages(rails, bo, 0) == []


async def test_whisper_reaches_the_other_clients_of_both_libraries(
    anycable: Script, rails: Script, chat: RunningServer, room: str
) -> None:
    ann, cy = [await enter(anycable, chat, name, room) for name in ("Ann", "Cy")]
    bo = await enter_by_page(rails, chat, "Bo", room)

    await ann.order("whisper", channel="room", data={"name": "Cy", "text": "forged"})
    whispered = {"$whisper": {"name": "Cy", "text": "forged"}, "from": "Ann"}
    for script, client in ((rails, bo), (anycable, cy)):
        assert await marked(script, client, "$whisper", 1) == [whispered]
    await speak(ann, "written")

    assert await chat_messages(anycable, ann, 1) == [said("Ann", "written", 1)]
    for script, client in ((rails, bo), (anycable, cy)):
        assert await chat_messages(script, client, 1) == [said("Ann", "written", 1)]


async def test_reply_to_an_action_can_be_awaited_with_both_libraries(
    anycable: Script, rails: Script, chat: RunningServer, room: str
) -> None:
    ann = await enter(anycable, chat, "Ann", room)
    bo = await enter_by_page(rails, chat, "Bo", room)

    for client in (ann, bo):
        await client.order("call", channel="room", action="speak", data={"text": "hello"})
        assert (await client.sees("replied", outcome="result"))["result"] == {"number": 1}
        await client.order("call", channel="room", action="speak", data={"text": ""})
        refused = await client.sees("replied", outcome="error")
        assert (refused["code"], refused["text"]) == ("bad_text", "text must be 1 to 2000 characters")
        await client.order("call", channel="room", action="sing")
        assert (await client.sees("replied", outcome="error", times=2))["code"] == "unknown_action"


async def test_reply_without_an_id_is_received_by_both_libraries(
    anycable: Script, rails: Script, chat: RunningServer, room: str
) -> None:
    ann = await enter(anycable, chat, "Ann", room)
    bo = await enter_by_page(rails, chat, "Bo", room)

    for script, client in ((anycable, ann), (rails, bo)):
        await speak(client, "hello")
        await speak(client, "")
        assert await marked(script, client, "$reply_to", 2) == [
            {"$reply_to": None, "action": "speak", "result": {"number": 1}},
            {
                "$reply_to": None,
                "action": "speak",
                "error": {"code": "bad_text", "message": "text must be 1 to 2000 characters"},
            },
        ]


async def test_channel_decides_presence_and_client_only_adds_its_info(
    anycable: Script, rails: Script, chat: RunningServer, room: str
) -> None:
    ann = await enter(anycable, chat, "Ann", room)
    bo = await enter_by_page(rails, chat, "Bo", room)

    await ann.sees("presence", type="join", id="Bo")
    await bo.order("unsubscribe", channel="room")
    await ann.sees("presence", type="leave", id="Bo")
    cy = await enter(anycable, chat, "Cy", room)
    await ann.sees("presence", type="join", id="Cy")
    await cy.order("join", channel="room", id="Cy", info={"mood": "fine"})  # present already: only the info is new
    assert await members(cy) == {"Ann": None, "Cy": {"mood": "fine"}}
    await cy.order("leave", channel="room")
    await ann.sees("presence", type="leave", id="Cy")
    await cy.order("join", channel="room", id="Ann", info={"mood": "forged"})
    await cy.order("leave", channel="room")
    await cy.order("join", channel="room", id="Cy", info={"mood": "better"})

    assert (await ann.sees("presence", type="join", id="Cy", times=2))["info"] == {"mood": "better"}
    assert await members(ann) == {"Ann": None, "Cy": {"mood": "better"}}


@pytest.mark.parametrize("how", ["fin", "reset", "stall"])
async def test_resumed_client_misses_no_message_and_the_channel_is_notified(
    anycable: Script, rails: Script, chat: RunningServer, how: str
) -> None:
    room = f"resume-{how}"
    ann = await enter(anycable, chat, "Ann", room)
    bo = await enter_by_page(rails, chat, "Bo", room)
    await speak(ann, "one")
    await chat_messages(rails, bo, 1)

    await ann.lose(how)
    await speak(bo, "two")
    await speak(bo, "three")
    await chat_messages(rails, bo, 3)
    back = await ann.come_back()
    await chat_messages(rails, bo, 4)
    await speak(ann, "four")

    assert (back["reconnect"], back["restored"]) == (True, True)
    conversation = [
        said("Ann", "one", 1),
        said("Bo", "two", 1),
        said("Bo", "three", 2),
        {"name": "Ann", "event": "came back"},
        said("Ann", "four", 2),
    ]
    assert await chat_messages(anycable, ann, 5) == conversation
    assert await chat_messages(rails, bo, 5) == conversation
    assert (await members(ann)).keys() == {"Ann", "Bo"}
