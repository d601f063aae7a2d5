"""Actions: change state and streams, transmit, set presence, close the connection."""

import json

import pytest

from ropewalk.testing.application_orders import Order, call, info, seat
from tests.cable import kind
from tests.conformance.applications.stage import PYTHON, Stage
from tests.server import publish


class Acting:
    async def test_state_is_kept_across_commands_until_it_is_deleted(self, stage: Stage) -> None:
        one, other = seat(Order(keep={"room": "1", "gone": "x"}, remember={"lang": "de", "gone": "y"})), seat(number=1)
        changing = Order(keep={"room": "2", "gone": ""}, remember={"gone": "", "seen": "1"})
        async with stage.client() as client:
            await client.send(command="subscribe", identifier=one)
            await client.send(command="message", identifier=one, data=call(changing))
            await client.send(command="message", identifier=one, data=call())
            await client.send(command="subscribe", identifier=other)
            for wanted in (one, other):
                await client.expect("confirm_subscription", identifier=wanted)
            calls = [event for event in stage.told() if event.sid == client.sid]
            assert [event.kind for event in calls] == ["connect", "subscribe", "message", "message", "subscribe"]
            assert [event.state for event in calls] == [
                {},
                {"entered": "yes"},
                {"entered": "yes", "lang": "de", "gone": "y"},
                {"entered": "yes", "lang": "de", "seen": "1"},
                {"entered": "yes", "lang": "de", "seen": "1"},
            ]
            assert [event.own for event in calls] == [{}, {}, {"room": "1", "gone": "x"}, {"room": "2"}, {}]
            assert json.loads(calls[2].data) == json.loads(call(changing))

    async def test_action_stops_and_adds_streams(self, stage: Stage) -> None:
        wanted, streams = seat(Order(streams=("act/1", "act/2"))), ("act/1", "act/2", "act/3")

        async def heard_of() -> list[str]:
            for stream in streams:
                await publish(stage.server, stream, f'"{stream}"')
            await client.send(command="ping")
            return [frame["message"] for frame in await client.messages_until("pong")]

        async with stage.client() as client:
            await client.send(command="subscribe", identifier=wanted)
            await client.expect("confirm_subscription")
            assert await heard_of() == ["act/1", "act/2"]
            await client.send(command="message", identifier=wanted, data=call(Order(stop=("act/1",))))
            await client.quiet()
            assert await heard_of() == ["act/2"]
            await client.send(command="message", identifier=wanted, data=call(Order(streams=("act/3",))))
            await client.quiet()
            assert await heard_of() == ["act/2", "act/3"]
            await client.send(command="message", identifier=wanted, data=call(Order(stop_all=True)))
            await client.quiet()
            assert await heard_of() == []
            await client.send(command="message", identifier=wanted, data=call(Order(stop_all=True, streams=("act/1",))))
            await client.quiet()
            assert await heard_of() == ["act/1"]

    async def test_history_covers_the_current_streams(self, stage: Stage) -> None:
        wanted = seat(Order(streams=("follow/1", "follow/2")))
        for number in (1, 2, 3):
            await publish(stage.server, f"follow/{number}", f"{number}")
        async with stage.client() as client:
            await client.send(command="subscribe", identifier=wanted)
            await client.expect("confirm_subscription")
            order = Order(stop=("follow/1",), streams=("follow/3",))
            await client.send(command="message", identifier=wanted, data=call(order))
            await client.send(command="history", identifier=wanted, history={"since": 1})
            assert [frame["message"] for frame in await client.messages_until("confirm_history")] == [2, 3]

    async def test_stream_limit_applies_to_the_subscription(self, stage: Stage) -> None:
        wanted, most = seat(), [f"bounded/{number}" for number in range(1000)]
        async with stage.client() as client:
            await client.send(command="subscribe", identifier=wanted)
            await client.expect("confirm_subscription")
            for streams in (most, ["bounded/one more"]):
                await client.send(command="message", identifier=wanted, data=call(Order(streams=tuple(streams))))
                await client.send(command="ping")
                await client.until("pong")
            for stream in ("bounded/one more", most[-1]):
                await publish(stage.server, stream, json.dumps(stream))
            assert await client.messages(1) == [most[-1]]

    async def test_unknown_or_failed_action_changes_nothing(self, stage: Stage) -> None:
        wanted = seat(Order(streams=("steady",)))
        failing = Order(fail=True, say=("never said",), keep={"never": "kept"}, stop_all=True, disconnect=True)
        async with stage.client() as client:
            await client.send(command="subscribe", identifier=wanted)
            await client.expect("confirm_subscription")
            for data, code in ((json.dumps({"action": "disobey"}), "unknown_action"), (call(failing), "failed")):
                await client.send(command="message", identifier=wanted, data=data)
                if stage.kind == PYTHON:  # errors of RPC applications are only logged
                    assert (await client.expect("reply"))["message"]["error"] == {"code": code}
                await client.quiet()
            await publish(stage.server, "steady", '"still here"')
            assert await client.messages(1) == ["still here"]
            await client.send(command="message", identifier=wanted, data=call())
            await client.quiet()
            last = await stage.heard(client.sid, "message")
            assert last.own == {}

    async def test_action_without_a_subscription_is_ignored(self, stage: Stage) -> None:
        async with stage.client() as client:
            await client.send(command="message", identifier=seat(), data=call())
            await client.quiet()
            assert stage.story(client.sid) == ["connect"]

    async def test_whispers_need_the_permission_of_the_application(self, stage: Stage) -> None:
        whispering, listening = seat(Order(whisper="whispers")), seat(Order(streams=("whispers",)))
        async with stage.client() as one, stage.client(user="bea") as two:
            for client, wanted in ((one, whispering), (two, listening)):
                await client.send(command="subscribe", identifier=wanted)
                await client.expect("confirm_subscription")
            await two.send(command="whisper", identifier=listening, data="not allowed")
            await two.quiet()
            await one.send(command="whisper", identifier=whispering, data={"typing": True})
            await one.quiet()
            whisper = await two.expect("whisper", identifier=listening)
            assert whisper["message"] == {"$whisper": {"typing": True}, "from": "ann"}
            assert stage.story(one.sid) == ["connect", "subscribe"]

    async def test_application_sets_the_presence_of_a_client(self, stage: Stage) -> None:
        watching, sitting = seat(Order(presence="hall")), seat(Order(presence="hall", join="bea"))
        async with stage.client() as watcher, stage.client(user="bea") as member:
            await watcher.send(command="subscribe", identifier=watching)
            await watcher.expect("confirm_subscription")
            await member.send(command="subscribe", identifier=sitting)
            await member.expect("confirm_subscription")
            joined = {"type": "join", "id": "bea", "info": info("bea")}
            assert (await member.expect("presence", identifier=sitting))["message"] == joined
            assert (await watcher.expect("presence", identifier=watching))["message"] == joined
            await watcher.send(command="presence", identifier=watching)
            listed = {"type": "info", "total": 1, "records": [{"id": "bea", "info": info("bea")}]}
            assert (await watcher.expect("presence"))["message"] == listed
            await member.send(command="message", identifier=sitting, data=call(Order(leave=True, say=("bye",))))
            assert await member.messages(1) == ["bye"]
            for client in (member, watcher):
                assert (await client.expect("presence"))["message"] == {"type": "leave", "id": "bea"}
            await member.send(command="message", identifier=sitting, data=call(Order(join="bea")))
            assert (await watcher.expect("presence"))["message"] == joined
            await member.send(command="unsubscribe", identifier=sitting)
            assert (await watcher.expect("presence"))["message"] == {"type": "leave", "id": "bea"}

    async def test_client_sets_its_presence_if_the_application_allows_it(self, stage: Stage) -> None:
        allowed, forbidden = seat(Order(presence="parlour")), seat(Order(streams=("parlour",)))
        async with stage.client() as client:
            for wanted in (allowed, forbidden):
                await client.send(command="subscribe", identifier=wanted)
                await client.expect("confirm_subscription")
            await client.send(command="join", identifier=forbidden, presence={"id": "nobody"})
            await client.quiet()
            await client.send(command="join", identifier=allowed, presence={"id": "ann"})
            for _ in (allowed, forbidden):
                assert (await client.expect("presence"))["message"] == {"type": "join", "id": "ann"}

    @pytest.mark.parametrize(
        ("wanted", "then", "received"),
        [
            (Order(say=("bye",), disconnect=True), None, ["bye", "confirm_subscription"]),
            (Order(say=("no",), disconnect=True, reject=True), None, ["no", "reject_subscription"]),
            (Order(), Order(say=("bye",), disconnect=True), ["confirm_subscription", "bye"]),
        ],
        ids=["accepted", "rejected", "action"],
    )
    async def test_application_closes_the_connection_after_its_transmissions(
        self, stage: Stage, wanted: Order, then: Order | None, received: list[str]
    ) -> None:
        async with stage.client() as client:
            await client.send(command="subscribe", identifier=seat(wanted))
            if then is not None:
                await client.send(command="message", identifier=seat(wanted), data=call(then))
            assert await client.closed() == (1000, "Closed by the application")
            assert [frame.get("message") or kind(frame) for frame in client.received if kind(frame) != "ping"][1:] == received
            disconnect_call = await stage.heard(client.sid, "disconnect")
            assert list(disconnect_call.subscriptions) == ([] if wanted.reject else [seat(wanted)])
            async with stage.client(welcome=False, sid=client.sid) as back:
                await back.welcomed(restored=False)
