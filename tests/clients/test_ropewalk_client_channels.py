"""The JavaScript client with the chat example of Python channels: messages, replies, whispers, members, rejections."""

from collections.abc import Iterator

import pytest

from tests.clients.script import Client, Script
from tests.clients.test_python_channels import CHAT
from tests.server import RunningServer, running_server

pytestmark = pytest.mark.needs_node


@pytest.fixture(scope="module")
def chat() -> Iterator[RunningServer]:
    with running_server("--app", "chat:app", "--app_dir", str(CHAT)) as server:
        yield server


async def enter(script: Script, server: RunningServer, name: str, room: str) -> Client:
    await script.order("open", name, url=f"{server.cable}?name={name}")
    client = Client(script, name)
    await client.order("subscribe", channel="room", kind="ChatChannel", params={"room": room}, **{"from": "start"})
    await client.sees("subscription", state="live")
    return client


async def test_members_of_a_room_talk_and_get_replies(ropewalk: Script, chat: RunningServer) -> None:
    ada, bo = [await enter(ropewalk, chat, name, "talk") for name in ("Ada", "Bo")]
    await ada.order("perform", channel="room", action="speak", data={"text": "hello"})
    assert (await ada.sees("replied"))["result"] == {"number": 1}
    for client in (ada, bo):
        [message] = await client.gets("room", 1)
        assert message["data"] == {"name": "Ada", "text": "hello", "number": 1}

    await ada.order("perform", channel="room", action="speak", data={"text": ""})
    failed = await ada.sees("perform_failed")
    assert (failed["code"], failed["text"]) == ("bad_text", "text must be 1 to 2000 characters")
    await ada.order("perform", channel="room", action="sing", data={})
    assert (await ada.sees("perform_failed", times=2))["code"] == "unknown_action"
    await ada.order("perform", channel="room", action="speak", data={"text": "again"}, options={"reply": False})
    await ada.sees("replied", times=2)
    await bo.gets("room", 2)

    await bo.order("whisper", channel="room", data={"typing": True})
    whisper = await ada.sees("transient")
    assert (whisper["type"], whisper["from"], whisper["data"]) == ("whisper", "Bo", {"typing": True})
    await bo.order("watch", channel="room", only=["presence"])
    await ropewalk.until(
        lambda: any({each["id"] for each in event["members"]} == {"Ada", "Bo"} for event in bo.all("presence")), "both members"
    )


async def test_an_action_waits_for_the_connection_and_fails_if_it_is_lost_before_the_reply(
    ropewalk: Script, chat: RunningServer
) -> None:
    ada = await enter(ropewalk, chat, "Ada", "offline")
    await ada.order("disconnect")
    await ada.order("perform", channel="room", action="speak", data={"text": "from away"})
    await ada.order("perform", channel="room", action="speak", data={"text": "never"}, options={"timeout": 1})
    assert (await ada.sees("perform_failed"))["code"] == "timeout"
    await ada.order("reconnect")
    await ada.sees("replied")
    texts = [event["data"].get("text") for event in await ada.gets("room", 2)]
    assert [text for text in texts if text] == ["from away"]

    await ada.order("perform_and_cut", channel="room", action="speak", data={"text": "last words"})
    assert (await ada.sees("perform_failed", times=2))["code"] == "connection_lost"


async def test_an_unknown_room_is_rejected(ropewalk: Script, chat: RunningServer) -> None:
    ada = await enter(ropewalk, chat, "Ada", "known")
    await ada.order("subscribe", channel="cellar", kind="ChatChannel", params={"room": "The Cellar"})
    assert (await ada.sees("error", channel="cellar"))["text"] == "subscription to ChatChannel rejected"


async def test_a_client_without_a_name_ends_as_unauthorized(ropewalk: Script, chat: RunningServer) -> None:
    await ropewalk.order("open", "unnamed", url=chat.url)
    unnamed = Client(ropewalk, "unnamed")
    assert (await unnamed.sees("client_error"))["code"] == "unauthorized"
    assert (await unnamed.sees("status", state="closed"))["reason"] == "unauthorized"
