"""`ropewalk.testing.Cable`: what authors of channels can see of their app, and that it is the app as the server runs it."""

import asyncio
from typing import Any

import pytest

from ropewalk import App, Channel, Connection
from ropewalk.testing import Cable, Client, NothingReceived, Rejected, Subscription
from tests.unit.testing.rooms import rooms


async def seated(cable: Cable, name: str = "bo", room: Any = 1, **params: Any) -> tuple[Client, Subscription]:
    client = await cable.connect(params={"name": name})
    return client, await client.subscribe("RoomChannel", room=room, **params)


# --- connecting ------------------------------------------------------------------------------------------------------


async def test_the_app_starts_before_the_first_client_and_ends_after_the_last_one_has_gone() -> None:
    app = rooms()
    async with Cable(app) as cable:
        await seated(cable)
    assert app.told == ["startup", "subscribed bo 1", "unsubscribed bo 1", "gone bo", "shutdown"]


async def test_a_client_is_known_by_its_parameters_cookies_or_headers() -> None:
    async with Cable(rooms(), headers=["Cookie", "X-Name"]) as cable:
        clients = [
            await cable.connect(params={"name": "bo & co"}),
            await cable.connect(cookies={"theme": "dark", "name": "ann"}),
            await cable.connect(headers={"X-Name": "cy"}, remote="10.0.0.7"),
        ]
        assert [client.identity for client in clients] == [{"name": "bo & co"}, {"name": "ann"}, {"name": "cy"}]
        assert [client.state for client in clients] == [{"from": "127.0.0.1"}, {"from": "127.0.0.1"}, {"from": "10.0.0.7"}]
        assert clients[0].frames == [{"type": "welcome", "sid": clients[0].sid}]


async def test_a_client_that_is_turned_away_is_told_why() -> None:
    async with Cable(rooms()) as cable:
        with pytest.raises(Rejected, match="no name") as caught:
            await cable.connect()
        assert caught.value.reason == "no name"


async def test_a_header_that_the_server_would_not_pass_on_is_an_error_of_the_test() -> None:
    async with Cable(rooms()) as cable:
        with pytest.raises(ValueError, match="would not see x-name"):
            await cable.connect(headers={"X-Name": "cy"})


# --- channels --------------------------------------------------------------------------------------------------------


async def test_everybody_in_a_room_hears_what_is_said() -> None:
    async with Cable(rooms()) as cable:
        _, bo = await seated(cable, "bo")
        _, ann = await seated(cable, "ann")
        await bo.perform("speak", text="one")
        await bo.perform("speak_from_a_thread", text="two")
        assert [await ann.receive(), await ann.receive()] == ["one", "two"]
        assert bo.messages == bo.unread == ["one", "two"]
        assert ann.unread == []
        assert await cable.history("room/1") == ["one", "two"]
        assert await cable.history("nowhere") == []


async def test_state_and_streams_are_those_that_the_server_keeps() -> None:
    async with Cable(rooms()) as cable:
        _, chat = await seated(cable)
        assert (chat.streams, chat.state) == (("room/1",), {})
        await chat.perform("speak", text="one")
        await chat.perform("move", to=2)
        assert (chat.streams, chat.state) == (("room/2",), {"said": 1})
        await chat.unsubscribe()
        assert (chat.streams, chat.state) == ((), {})


async def test_a_rejected_subscription_says_why_and_what_was_transmitted() -> None:
    async with Cable(rooms()) as cable:
        bo = await cable.connect(params={"name": "bo"})
        with pytest.raises(Rejected, match="full") as caught:
            await bo.subscribe("RoomChannel", room="full")
        assert caught.value.messages == ["no chair is left"]
        with pytest.raises(Rejected, match="there is no channel 'NoChannel'"):
            await bo.subscribe("NoChannel")


async def test_a_refused_action_says_why_and_what_it_transmitted_is_there() -> None:
    async with Cable(rooms()) as cable:
        _, chat = await seated(cable)
        with pytest.raises(Rejected, match="not today"):
            await chat.perform("refuse")
        assert await chat.receive() == "sorry"


async def test_after_an_unsubscribe_there_is_nothing_to_call() -> None:
    app = rooms()
    async with Cable(app) as cable:
        bo, chat = await seated(cable)
        await chat.unsubscribe()
        assert app.told[-1] == "unsubscribed bo 1"
        with pytest.raises(Rejected, match="not subscribed"):
            await chat.perform("speak", text="one")
        again = await bo.subscribe("RoomChannel", room=1)
        await cable.publish("room/1", "two")
        assert (chat.messages, again.messages) == ([], ["two"])


async def test_subscribing_again_is_the_same_subscription() -> None:
    async with Cable(rooms()) as cable:
        bo, chat = await seated(cable)
        twin = await bo.subscribe("RoomChannel", room=1)
        await cable.publish("room/1", "one")
        assert await twin.receive() == "one"
        assert chat.unread == []


async def test_a_message_that_did_not_come_is_missed_in_words() -> None:
    async with Cable(rooms()) as cable:
        bo, chat = await seated(cable)
        await cable.publish("room/1", "one")
        await chat.receive()
        with pytest.raises(NothingReceived, match=r'"room":1.* streams from room/1\. There were 1 before, the last: \'one\''):
            await chat.receive()
        await bo.disconnect()
        with pytest.raises(NothingReceived, match="The connection is closed"):
            await chat.receive()


async def test_what_the_app_sends_on_its_own_can_be_waited_for() -> None:
    app = rooms()
    async with Cable(app) as cable:
        bo, chat = await seated(cable)
        await chat.perform("promise")
        assert bo.state["promise"] is True
        with pytest.raises(NothingReceived):
            await chat.receive()
        asyncio.get_running_loop().call_soon(app.gate.set)
        assert await chat.receive(within=10) == "kept"


async def test_a_slow_handler_holds_up_nobody_else() -> None:
    app = rooms()
    async with Cable(app) as cable:
        (_, bo), (_, ann) = await seated(cable, "bo"), await seated(cable, "ann")
        slow = asyncio.create_task(bo.perform("wait"))
        await ann.perform("speak", text="meanwhile")
        assert bo.messages == ["meanwhile"]
        app.gate.set()
        await slow
        assert bo.messages == ["meanwhile", "waited"]


async def test_commands_of_one_client_are_handled_one_after_another() -> None:
    async with Cable(rooms()) as cable:
        _, chat = await seated(cable)
        await asyncio.gather(*(chat.perform("speak", text=number) for number in range(20)))
        assert chat.messages == list(range(20))
        assert chat.state == {"said": 20}


async def test_publications_from_outside_reach_those_who_are_meant() -> None:
    async with Cable(rooms()) as cable:
        (bo, in_one), (_, in_two) = await seated(cable, "bo", 1), await seated(cable, "ann", 2)
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


async def test_a_whisper_reaches_the_others() -> None:
    async with Cable(rooms()) as cable:
        (_, bo), (_, ann) = await seated(cable, "bo"), await seated(cable, "ann")
        await bo.whisper({"typing": True})
        assert await ann.receive() == {"$whisper": {"typing": True}, "from": "bo"}
        assert bo.unread == []


async def test_presence_is_asked_for_and_its_changes_are_seen() -> None:
    async with Cable(rooms()) as cable:
        (_, bo), (_, ann) = await seated(cable, "bo"), await seated(cable, "ann")
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


async def test_nobody_is_present_under_anothers_name() -> None:
    async with Cable(rooms()) as cable:
        (_, bo), (_, ann) = await seated(cable, "bo"), await seated(cable, "ann")
        with pytest.raises(Rejected):
            await bo.join("ann")
        with pytest.raises(Rejected):
            await bo.join("admin", {"name": "ann"})
        assert await ann.presence() == {"ann": None, "bo": None}


async def test_an_action_answers_its_caller_and_nobody_else() -> None:
    async with Cable(rooms()) as cable:
        (_, bo), (_, ann) = await seated(cable, "bo"), await seated(cable, "ann")
        assert await bo.perform("add", a=1, b=2) == {"sum": 3}
        assert await bo.perform("speak", text="hi") is None
        with pytest.raises(Rejected, match="numbers only") as refused:
            await bo.perform("add", a=1, b="2")
        assert refused.value.code == "not_a_number"
        with pytest.raises(Rejected, match="not today") as refused:
            await bo.perform("refuse")
        assert refused.value.code == "rejected"
        assert bo.messages == ["hi", "sorry"]
        assert ann.messages == ["hi"]


async def test_what_the_channel_does_not_allow_is_rejected() -> None:
    async with Cable(rooms()) as cable:
        _, chat = await seated(cable, open=False)
        with pytest.raises(Rejected, match="whisper=True"):
            await chat.whisper("psst")
        with pytest.raises(Rejected, match="presence=True"):
            await chat.join("bo")
        with pytest.raises(Rejected, match="presence=True"):
            await chat.presence()


# --- going and coming back -------------------------------------------------------------------------------------------


async def test_a_client_that_comes_back_has_missed_nothing() -> None:
    app = rooms()
    async with Cable(app) as cable:
        (bo, chat), (_, ann) = await seated(cable, "bo"), await seated(cable, "ann")
        quiet = await bo.subscribe("RoomChannel", room="quiet")
        await chat.perform("speak", text="one")
        await bo.drop()
        await ann.perform("speak", text="two")
        await cable.publish("room/quiet", "hush")
        assert await bo.resume() is True
        await ann.perform("speak", text="three")
        assert chat.messages == ["one", "welcome back after 1", "two", "three"]
        assert quiet.messages == ["welcome back after 0", "hush"]
        assert app.told[-2:] == ["restored bo 1", "restored bo quiet"]


async def test_a_stream_of_which_nothing_was_seen_is_resumed_from_where_it_stood() -> None:
    async with Cable(rooms()) as cable:
        await cable.publish("room/2", "old")
        bo, chat = await seated(cable)
        await chat.perform("move", to=2)
        await bo.drop()
        await cable.publish("room/2", "new")
        await bo.resume()
        assert chat.messages == ["welcome back after 0", "new"]


async def test_a_client_that_stays_away_too_long_begins_anew_and_the_app_has_heard_of_it() -> None:
    app = rooms()
    async with Cable(app) as cable:
        bo, chat = await seated(cable)
        await chat.perform("speak", text="one")
        await bo.drop()
        await cable.advance(299)
        assert app.told[-1] == "subscribed bo 1"
        await cable.advance(2)
        assert app.told[-2:] == ["unsubscribed bo 1", "gone bo"]
        assert await bo.resume() is False
        assert app.told[-1] == "subscribed bo 1"
        assert chat.state == {}


async def test_who_may_no_longer_come_in_is_rejected_at_the_return() -> None:
    doors = {"open": True}
    app = App()

    @app.on_connect
    async def connect(connection: Connection) -> None:
        if not doors["open"]:
            connection.reject("closed for today")

    @app.channel
    class HallChannel(Channel):
        async def subscribed(self) -> None:
            if self.params["row"] > 1 and "full" in doors:
                self.reject("no seat is left")

    async with Cable(app) as cable:
        bo = await cable.connect()
        for row in (1, 2):
            await bo.subscribe("HallChannel", row=row)
        await bo.drop()
        await cable.advance(301)
        doors["full"] = True
        with pytest.raises(Rejected, match="no seat is left"):
            await bo.resume()
        assert not bo.closed
        await bo.drop()
        await cable.advance(301)
        doors["open"] = False
        with pytest.raises(Rejected, match="closed for today"):
            await bo.resume()
        assert bo.closed


async def test_presence_ends_some_time_after_the_connection() -> None:
    async with Cable(rooms()) as cable:
        (bo, _), (_, ann) = await seated(cable, "bo"), await seated(cable, "ann")
        await bo.drop()
        await cable.advance(14)
        assert await ann.presence() == {"ann": None, "bo": None}
        await cable.advance(2)
        assert await ann.presence() == {"ann": None}


async def test_a_client_that_leaves_for_good_is_gone_at_once() -> None:
    app = rooms()
    async with Cable(app) as cable:
        bo, _ = await seated(cable)
        await bo.disconnect()
        assert bo.closed
        assert app.told[-2:] == ["unsubscribed bo 1", "gone bo"]


async def test_a_channel_may_close_the_connection() -> None:
    app = rooms()
    async with Cable(app) as cable:
        bo, chat = await seated(cable)
        await chat.perform("quit")
        assert bo.closed
        assert app.told[-2:] == ["unsubscribed bo 1", "gone bo"]
        with pytest.raises(RuntimeError, match="closed"):
            await chat.perform("speak", text="one")
        assert await bo.resume() is False
        await chat.perform("speak", text="back")
        assert chat.messages == ["back"]


async def test_what_needs_a_connection_or_none_says_so() -> None:
    async with Cable(rooms()) as cable:
        bo, chat = await seated(cable)
        with pytest.raises(RuntimeError, match="drop"):
            await bo.resume()
        await bo.drop()
        for call in (bo.drop(), bo.disconnect(), chat.perform("speak", text="one"), bo.subscribe("RoomChannel", room=2)):
            with pytest.raises(RuntimeError, match="resume"):
                await call
