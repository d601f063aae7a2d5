"""`ropewalk.testing.Cable`: clients, subscriptions, presence and reconnects of an app in a test."""

import asyncio
from typing import Any

import pytest

from ropewalk import App, Channel, Connection
from ropewalk.testing import Cable, Client, NothingReceived, Rejected, Subscription
from tests.unit.testing.rooms import rooms


async def enter_room(cable: Cable, name: str = "bo", room: Any = 1, **params: Any) -> tuple[Client, Subscription]:
    client = await cable.connect(params={"name": name})
    return client, await client.subscribe("RoomChannel", room=room, **params)


# --- connecting ------------------------------------------------------------------------------------------------------


async def test_app_starts_before_the_first_client_and_stops_after_the_last() -> None:
    app = rooms()
    async with Cable(app) as cable:
        await enter_room(cable)
    assert app.calls == ["startup", "subscribed bo 1", "unsubscribed bo 1", "disconnected bo", "shutdown"]


async def test_client_is_identified_by_parameters_cookies_or_headers() -> None:
    async with Cable(rooms(), headers=["Cookie", "X-Name"]) as cable:
        clients = [
            await cable.connect(params={"name": "bo & co"}),
            await cable.connect(cookies={"theme": "dark", "name": "ann"}),
            await cable.connect(headers={"X-Name": "cy"}, remote="10.0.0.7"),
        ]
        assert [client.identity for client in clients] == [{"name": "bo & co"}, {"name": "ann"}, {"name": "cy"}]
        assert [client.state for client in clients] == [{"from": "127.0.0.1"}, {"from": "127.0.0.1"}, {"from": "10.0.0.7"}]
        assert clients[0].frames == [{"type": "welcome", "sid": clients[0].sid}]


async def test_rejected_client_has_a_reason() -> None:
    async with Cable(rooms()) as cable:
        with pytest.raises(Rejected, match="no name") as caught:
            await cable.connect()
        assert caught.value.reason == "no name"


async def test_header_that_the_server_does_not_pass_on_is_an_error() -> None:
    async with Cable(rooms()) as cable:
        with pytest.raises(ValueError, match="would not see x-name"):
            await cable.connect(headers={"X-Name": "cy"})


# --- channels --------------------------------------------------------------------------------------------------------


async def test_broadcast_reaches_all_subscribers() -> None:
    async with Cable(rooms()) as cable:
        _, bo = await enter_room(cable, "bo")
        _, ann = await enter_room(cable, "ann")
        await bo.perform("speak", text="one")
        await bo.perform("speak_sync", text="two")
        assert [await ann.receive(), await ann.receive()] == ["one", "two"]
        assert bo.messages == bo.unread == ["one", "two"]
        assert ann.unread == []
        assert await cable.history("room/1") == ["one", "two"]
        assert await cable.history("nowhere") == []


async def test_state_and_streams_of_a_subscription_are_visible() -> None:
    async with Cable(rooms()) as cable:
        _, chat = await enter_room(cable)
        assert (chat.streams, chat.state) == (("room/1",), {})
        await chat.perform("speak", text="one")
        await chat.perform("move", to=2)
        assert (chat.streams, chat.state) == (("room/2",), {"said": 1})
        await chat.unsubscribe()
        assert (chat.streams, chat.state) == ((), {})


async def test_rejected_subscription_has_reason_and_transmissions() -> None:
    async with Cable(rooms()) as cable:
        bo = await cable.connect(params={"name": "bo"})
        with pytest.raises(Rejected, match="full") as caught:
            await bo.subscribe("RoomChannel", room="full")
        assert caught.value.messages == ["no seat is left"]
        with pytest.raises(Rejected, match="there is no channel 'NoChannel'"):
            await bo.subscribe("NoChannel")


async def test_rejected_action_has_reason_and_transmissions() -> None:
    async with Cable(rooms()) as cable:
        _, chat = await enter_room(cable)
        with pytest.raises(Rejected, match="not today"):
            await chat.perform("refuse")
        assert await chat.receive() == "sorry"


async def test_unsubscribed_channel_cannot_be_called() -> None:
    app = rooms()
    async with Cable(app) as cable:
        bo, chat = await enter_room(cable)
        await chat.unsubscribe()
        assert app.calls[-1] == "unsubscribed bo 1"
        with pytest.raises(Rejected, match="not subscribed"):
            await chat.perform("speak", text="one")
        again = await bo.subscribe("RoomChannel", room=1)
        await cable.publish("room/1", "two")
        assert (chat.messages, again.messages) == ([], ["two"])


async def test_second_subscribe_returns_the_same_subscription() -> None:
    async with Cable(rooms()) as cable:
        bo, chat = await enter_room(cable)
        twin = await bo.subscribe("RoomChannel", room=1)
        await cable.publish("room/1", "one")
        assert await twin.receive() == "one"
        assert chat.unread == []


async def test_missing_message_is_explained() -> None:
    async with Cable(rooms()) as cable:
        bo, chat = await enter_room(cable)
        await cable.publish("room/1", "one")
        await chat.receive()
        with pytest.raises(NothingReceived, match=r'"room":1.* streams from room/1\. There were 1 before, the last: \'one\''):
            await chat.receive()
        await bo.disconnect()
        with pytest.raises(NothingReceived, match="The connection is closed"):
            await chat.receive()


async def test_receive_can_wait_for_a_later_message() -> None:
    app = rooms()
    async with Cable(app) as cable:
        bo, chat = await enter_room(cable)
        await chat.perform("publish_later")
        assert bo.state["later"] is True
        with pytest.raises(NothingReceived):
            await chat.receive()
        asyncio.get_running_loop().call_soon(app.gate.set)
        assert await chat.receive(within=60) == "published later"


async def test_slow_handler_does_not_block_other_clients() -> None:
    app = rooms()
    async with Cable(app) as cable:
        (_, bo), (_, ann) = await enter_room(cable, "bo"), await enter_room(cable, "ann")
        slow = asyncio.create_task(bo.perform("wait"))
        await ann.perform("speak", text="meanwhile")
        assert bo.messages == ["meanwhile"]
        app.gate.set()
        await slow
        assert bo.messages == ["meanwhile", "waited"]


async def test_commands_of_one_client_are_handled_in_order() -> None:
    async with Cable(rooms()) as cable:
        _, chat = await enter_room(cable)
        await asyncio.gather(*(chat.perform("speak", text=number) for number in range(20)))
        assert chat.messages == list(range(20))
        assert chat.state == {"said": 20}


async def test_external_publications_reach_their_subscribers() -> None:
    async with Cable(rooms()) as cable:
        (bo, in_one), (_, in_two) = await enter_room(cable, "bo", 1), await enter_room(cable, "ann", 2)
        receipt = await cable.publish("room/1", {"n": 1}, uid="a", type="note")
        again = await cable.publish("room/1", {"n": 1}, uid="a")
        await cable.publish("room/1", {"n": 2}, transient=True)
        await cable.publish("room/1", {"n": 3}, exclude_socket=bo.sid)
        assert in_one.messages == [{"n": 1}, {"n": 2}]
        assert in_two.messages == []
        assert (receipt.offset, again.offset, again.duplicate) == (1, 1, True)
        assert bo.frames[-2]["type"] == "note"
        assert await cable.history("room/1") == [{"n": 1}, {"n": 3}]


# --- whispers and presence -------------------------------------------------------------------------------------------


async def test_whisper_reaches_the_other_subscribers() -> None:
    async with Cable(rooms()) as cable:
        (_, bo), (_, ann) = await enter_room(cable, "bo"), await enter_room(cable, "ann")
        await bo.whisper({"typing": True})
        assert await ann.receive() == {"$whisper": {"typing": True}, "from": "bo"}
        assert bo.unread == []


async def test_presence_and_its_events_are_visible() -> None:
    async with Cable(rooms()) as cable:
        (_, bo), (_, ann) = await enter_room(cable, "bo"), await enter_room(cable, "ann")
        assert await ann.presence() == {"ann": None, "bo": None}
        await bo.leave()
        await bo.join("bo", {"mood": "fine"})
        assert await ann.presence() == {"ann": None, "bo": {"mood": "fine"}}
        await bo.leave()
        assert await ann.presence() == {"ann": None}
        left = {"type": "leave", "id": "bo"}
        assert ann.presence_events[-3:] == [left, {"type": "join", "id": "bo", "info": {"mood": "fine"}}, left]
        with pytest.raises(Rejected, match="not present"):
            await bo.leave()


async def test_join_under_another_name_is_rejected() -> None:
    async with Cable(rooms()) as cable:
        (_, bo), (_, ann) = await enter_room(cable, "bo"), await enter_room(cable, "ann")
        with pytest.raises(Rejected):
            await bo.join("ann")
        with pytest.raises(Rejected):
            await bo.join("admin", {"name": "ann"})
        assert await ann.presence() == {"ann": None, "bo": None}


async def test_reply_reaches_only_the_caller() -> None:
    async with Cable(rooms()) as cable:
        (_, bo), (_, ann) = await enter_room(cable, "bo"), await enter_room(cable, "ann")
        assert await bo.perform("add", a=1, b=2) == {"sum": 3}
        assert await bo.perform("speak", text="hi") is None
        with pytest.raises(Rejected, match="numbers only") as rejected:
            await bo.perform("add", a=1, b="2")
        assert rejected.value.code == "not_a_number"
        with pytest.raises(Rejected, match="not today") as rejected:
            await bo.perform("refuse")
        assert rejected.value.code == "rejected"
        assert bo.messages == ["hi", "sorry"]
        assert ann.messages == ["hi"]


async def test_whisper_and_presence_are_rejected_unless_allowed() -> None:
    async with Cable(rooms()) as cable:
        _, chat = await enter_room(cable, open=False)
        with pytest.raises(Rejected, match="whisper=True"):
            await chat.whisper("psst")
        with pytest.raises(Rejected, match="presence=True"):
            await chat.join("bo")
        with pytest.raises(Rejected, match="presence=True"):
            await chat.presence()


# --- disconnects and reconnects -------------------------------------------------------------------------------------------


async def test_resumed_client_misses_nothing() -> None:
    app = rooms()
    async with Cable(app) as cable:
        (bo, chat), (_, ann) = await enter_room(cable, "bo"), await enter_room(cable, "ann")
        quiet = await bo.subscribe("RoomChannel", room="quiet")
        await chat.perform("speak", text="one")
        await bo.drop()
        await ann.perform("speak", text="two")
        await cable.publish("room/quiet", "hush")
        assert await bo.resume() is True
        await ann.perform("speak", text="three")
        assert chat.messages == ["one", "welcome back after 1", "two", "three"]
        assert quiet.messages == ["welcome back after 0", "hush"]
        assert app.calls[-2:] == ["restored bo 1", "restored bo quiet"]


async def test_stream_without_messages_resumes_from_its_position() -> None:
    async with Cable(rooms()) as cable:
        await cable.publish("room/2", "old")
        bo, chat = await enter_room(cable)
        await chat.perform("move", to=2)
        await bo.drop()
        await cable.publish("room/2", "new")
        await bo.resume()
        assert chat.messages == ["welcome back after 0", "new"]


async def test_expired_session_is_disconnected_and_starts_again() -> None:
    app = rooms()
    async with Cable(app) as cable:
        bo, chat = await enter_room(cable)
        await chat.perform("speak", text="one")
        await bo.drop()
        await cable.advance(299)
        assert app.calls[-1] == "subscribed bo 1"
        await cable.advance(2)
        assert app.calls[-2:] == ["unsubscribed bo 1", "disconnected bo"]
        assert await bo.resume() is False
        assert app.calls[-1] == "subscribed bo 1"
        assert chat.state == {}


async def test_rejection_at_resume_is_raised() -> None:
    hall = {"open": True}
    app = App()

    @app.on_connect
    async def connect(connection: Connection) -> None:
        if not hall["open"]:
            connection.reject("closed for today")

    @app.channel
    class HallChannel(Channel):
        async def subscribed(self) -> None:
            if self.params["row"] > 1 and "full" in hall:
                self.reject("no seat is left")

    async with Cable(app) as cable:
        bo = await cable.connect()
        for row in (1, 2):
            await bo.subscribe("HallChannel", row=row)
        await bo.drop()
        await cable.advance(301)
        hall["full"] = True
        with pytest.raises(Rejected, match="no seat is left"):
            await bo.resume()
        assert not bo.closed
        await bo.drop()
        await cable.advance(301)
        hall["open"] = False
        with pytest.raises(Rejected, match="closed for today"):
            await bo.resume()
        assert bo.closed


async def test_presence_expires_after_the_connection() -> None:
    async with Cable(rooms()) as cable:
        (bo, _), (_, ann) = await enter_room(cable, "bo"), await enter_room(cable, "ann")
        await bo.drop()
        await cable.advance(14)
        assert await ann.presence() == {"ann": None, "bo": None}
        await cable.advance(2)
        assert await ann.presence() == {"ann": None}


async def test_disconnect_ends_the_session_at_once() -> None:
    app = rooms()
    async with Cable(app) as cable:
        bo, _ = await enter_room(cable)
        await bo.disconnect()
        assert bo.closed
        assert app.calls[-2:] == ["unsubscribed bo 1", "disconnected bo"]


async def test_channel_can_close_the_connection() -> None:
    app = rooms()
    async with Cable(app) as cable:
        bo, chat = await enter_room(cable)
        await chat.perform("close")
        assert bo.closed
        assert app.calls[-2:] == ["unsubscribed bo 1", "disconnected bo"]
        with pytest.raises(RuntimeError, match="closed"):
            await chat.perform("speak", text="one")
        assert await bo.resume() is False
        await chat.perform("speak", text="back")
        assert chat.messages == ["back"]


async def test_calls_in_the_wrong_connection_state_are_rejected() -> None:
    async with Cable(rooms()) as cable:
        bo, chat = await enter_room(cable)
        with pytest.raises(RuntimeError, match="drop"):
            await bo.resume()
        await bo.drop()
        for call in (bo.drop(), bo.disconnect(), chat.perform("speak", text="one"), bo.subscribe("RoomChannel", room=2)):
            with pytest.raises(RuntimeError, match="resume"):
                await call
