"""Subscribe, actions and unsubscribe: the result holds what the handlers requested, and nothing of it if they fail."""

import json
import logging
from datetime import datetime
from typing import Any

import pytest
from msgspec.structs import replace

from ropewalk.channels import ActionError, App, BadCall, Channel, action
from ropewalk.channels.replies import failure_reply
from ropewalk.model.application import CommandResult, PresenceUpdate, Reply
from ropewalk.model.errors import ApplicationError, ServerError, Unavailable
from ropewalk.model.messages import Publication
from ropewalk.model.presence import Member
from ropewalk.testing.auth import HOSTILE_IDENTIFIERS
from tests.unit.channels.requests import BO, encode_identifier, perform, send, subscribe, unsubscribe

app = App()
ROOM = encode_identifier("Chat", room="a", deep={"n": 1.5, "list": [None, True]})


@app.channel
class Chat(Channel):
    async def subscribed(self) -> None:
        self.stream_from(f"chat/{self.params['room']}", whisper=True, presence=True)
        self.transmit({"hello": self.connection.identity["name"]})

    @action
    async def speak(self, data: dict[str, Any]) -> None:
        self.broadcast("chat/a", {"text": data["text"]})

    @action
    def whoami(self) -> None:
        self.transmit([self.connection.sid, self.params, self.identifier == ROOM])

    @action
    def receive(self, data: dict[str, Any]) -> None:
        self.transmit({"received": data})

    @action("fail-now")
    async def fail(self) -> None:
        self.transmit("before")
        self.broadcast("chat/a", 1)
        self.state["count"] = 1
        raise ZeroDivisionError

    @action
    def refuse(self) -> None:
        self.transmit("not for you")
        self.broadcast("chat/a", 1)
        self.reject("too loud")

    @action
    def leave(self) -> None:
        self.disconnect()

    def not_for_clients(self) -> None:
        raise AssertionError


@app.channel
class Bare(Channel): ...


def message(data: object, identifier: str = ROOM) -> str:
    return json.dumps({"identifier": identifier, "message": data}, separators=(",", ":"))


async def test_result_of_subscribe_has_streams_and_transmissions() -> None:
    assert await subscribe(app, ROOM) == CommandResult(
        transmissions=(message({"hello": "Bo"}),),
        streams=("chat/a",),
        own={"$w": "chat/a", "$f": '"Bo"', "$p": "chat/a", "$m": "Bo"},
        presence_update=PresenceUpdate(True, Member("Bo")),
    )


async def test_channel_without_subscribed_accepts_every_client() -> None:
    assert await subscribe(app, encode_identifier("Bare")) == CommandResult()
    assert await unsubscribe(app, encode_identifier("Bare")) == CommandResult()


async def test_action_receives_data_and_its_broadcasts_are_in_the_result() -> None:
    answer = await perform(app, ROOM, "speak", text="hi")
    assert answer == CommandResult(publications=(Publication("chat/a", b'{"text":"hi"}'),))


async def test_action_without_a_data_parameter_sees_unchanged_params() -> None:
    answer = await perform(app, ROOM, "whoami", ignored=1)
    params = {"room": "a", "deep": {"n": 1.5, "list": [None, True]}}
    assert answer.transmissions == (message(["s-1", params, True]),)


async def test_data_without_an_action_goes_to_receive() -> None:
    assert (await send(app, ROOM, '{"a":1}')).transmissions == (message({"received": {"a": 1}}),)


async def test_data_without_an_action_is_rejected_without_receive() -> None:
    with pytest.raises(BadCall, match="Bare has no action 'receive'"):
        await send(app, encode_identifier("Bare"), '{"a":1}')


async def test_only_actions_can_be_called(caplog: pytest.LogCaptureFixture, subtests: pytest.Subtests) -> None:
    cases: list[str] = ["not_for_clients", "subscribed", "transmit", "fail", "__init__", "state", "", "x" * 10_000]
    for name in cases:
        with subtests.test(name=name):
            caplog.clear()
            caplog.set_level("DEBUG", "ropewalk.channels")  # DEBUG: clients could fill the log otherwise
            with pytest.raises(BadCall, match="Chat has no action"):
                await perform(app, ROOM, name)
            [record] = caplog.records
            assert (record.name, record.levelno) == ("ropewalk.channels", logging.DEBUG)
            reason = vars(record)["reason"]
            assert "Chat has no action" in reason
            assert name[:50] in reason
            assert len(reason) < 150


async def test_malformed_data_is_rejected(subtests: pytest.Subtests) -> None:
    cases: list[str] = ["", "hi", "[1]", "null", "{", '{"action":1}', '{"action":null}', "[" * 50_000, '"\\ud800"']
    for data in cases:
        with subtests.test(data=data), pytest.raises(BadCall):
            await send(app, ROOM, data)


async def test_identifier_without_a_channel_is_rejected_with_a_reason(subtests: pytest.Subtests) -> None:
    for case in HOSTILE_IDENTIFIERS:
        with subtests.test(case=case):
            answer = await subscribe(app, HOSTILE_IDENTIFIERS[case])
            assert not answer.accepted
            assert 0 < len(answer.reason) < 150
            with pytest.raises(BadCall):
                await send(app, HOSTILE_IDENTIFIERS[case], "{}")


async def test_failed_action_is_logged_and_has_no_effect(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ApplicationError, match=r"^Chat\.fail failed: ZeroDivisionError$"):
        await perform(app, ROOM, "fail-now")
    assert "Chat.fail failed" in caplog.text
    assert "Traceback" in caplog.text


async def test_failed_subscribed_rejects_the_subscription(caplog: pytest.LogCaptureFixture) -> None:
    assert await subscribe(app, encode_identifier("Chat")) == CommandResult(
        accepted=False, reason="Chat.subscribed failed: KeyError"
    )
    assert "Traceback" in caplog.text


async def test_rejecting_action_keeps_its_transmissions_only() -> None:
    answer = await perform(app, ROOM, "refuse")
    reply = Reply("refuse", code="rejected")
    assert answer == CommandResult(accepted=False, transmissions=(message("not for you"),), reason="too loud", reply=reply)


async def test_action_can_close_the_connection() -> None:
    assert await perform(app, ROOM, "leave") == CommandResult(disconnect=True)


async def test_rejected_subscription_has_no_streams() -> None:
    app = App()

    @app.channel
    class Closed(Channel):
        def subscribed(self) -> None:
            self.stream_from("a", whisper=True)
            self.transmit("closed")
            self.connection.state["seen"] = True
            self.reject()

    answer = await subscribe(app, encode_identifier("Closed"))
    assert answer == CommandResult(
        False, (message("closed", encode_identifier("Closed")),), reason="rejected by Closed.subscribed"
    )


async def test_subclasses_inherit_and_override_actions() -> None:
    app = App()

    class Base(Channel):
        @action
        def one(self) -> None:
            self.transmit("base")

        @action
        def two(self) -> None:
            self.transmit("base")

    @app.channel
    class Chat(Base):
        @action
        def two(self, data: dict[str, Any] | None = None) -> None:
            self.transmit(data)

    sent = [(await perform(app, encode_identifier("Chat"), name)).transmissions[0] for name in ("one", "two")]
    assert [json.loads(text)["message"] for text in sent] == ["base", {"action": "two"}]


# --- replies ----------------------------------------------------------------------------------------------------------


@app.channel
class Desk(Channel):
    @action
    async def add(self, data: dict[str, Any]) -> dict[str, Any]:
        return {"sum": data["a"] + data["b"], "keys": sorted(data)}

    @action
    def nothing(self) -> None: ...

    @action
    def not_json(self) -> object:
        self.transmit("before")
        return object()

    @action
    async def deny(self) -> None:
        self.transmit("listen")
        raise ActionError("that is too long", code="too_long")

    @action
    def falsy(self) -> int:
        return 0


DESK = encode_identifier("Desk")


async def call(action: str, reply_to: object, **data: object) -> CommandResult:
    return await send(app, DESK, json.dumps({"action": action, **data, "$reply_to": reply_to}))


async def test_return_value_is_the_reply_to_the_call() -> None:
    answer = await call("add", "c-7", a=1, b=2)
    assert answer.reply == Reply("add", b'"c-7"', b'{"sum":3,"keys":["a","action","b"]}')
    assert (await perform(app, DESK, "add", a=1, b=2)).reply == Reply("add", b"null", answer.reply.result)
    assert (await perform(app, DESK, "falsy")).reply == Reply("falsy", b"null", b"0")


async def test_action_that_returns_none_replies_only_to_a_call_with_an_id() -> None:
    assert (await perform(app, DESK, "nothing")).reply is None
    assert (await call("nothing", 7)).reply == Reply("nothing", b"7", b"null")


async def test_action_error_is_returned_with_its_code_and_text() -> None:
    reply = Reply("deny", b"1", code="too_long", text="that is too long")
    answer = await call("deny", 1)
    assert answer == CommandResult(False, (message("listen", DESK),), reason="that is too long", reply=reply)


async def test_return_value_that_is_not_json_fails_the_action(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ApplicationError, match=r"Desk\.not_json failed"):
        await perform(app, DESK, "not_json")
    assert "the return value of not_json cannot be written as JSON" in caplog.text


async def test_invalid_reply_to_is_rejected(subtests: pytest.Subtests) -> None:
    for name in [{"a": 1}, ["x"], 1.5, "x" * 129, None, True]:
        with subtests.test(name=name), pytest.raises(BadCall, match="reply_to"):
            await call("nothing", name)


def test_reply_to_a_failed_call_does_not_reveal_the_error(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, ServerError, Reply]] = [
        ('{"action":"sing","$reply_to":1}', BadCall("no", "unknown_action"), Reply("sing", b"1", code="unknown_action")),
        ('{"action":"add","$reply_to":"x"}', ApplicationError("secret"), Reply("add", b'"x"', code="failed")),
        ("{}", Unavailable("secret"), Reply("receive", code="unavailable")),
        ('{"action":7}', BadCall("no"), Reply("7", code="bad_data")),
        ('{"action":"add","$reply_to":[]}', BadCall("no"), Reply("add", code="bad_data")),
        ('{"action":7,"$reply_to":"x"}', BadCall("no"), Reply("7", b'"x"', code="bad_data")),
        ('{"action":"add","$reply_to":null}', BadCall("no"), Reply("add", code="bad_data")),
        ("[1]", BadCall("no"), Reply("receive", code="bad_data")),
        ("nonsense", BadCall("no"), Reply("receive", code="bad_data")),
    ]
    for data, error, reply in cases:
        with subtests.test(data=data, error=error):
            assert failure_reply(data, error) == reply


# --- streams and presence --------------------------------------------------------------------------------------------


class ScriptedBase(Channel):
    """Runs the script of its test."""

    @action
    def act(self) -> None:
        type(self).script(self)

    @staticmethod
    def script(channel: Any) -> None: ...


def bare_presence() -> App:
    app = App()

    @app.channel
    class P(Channel):
        def subscribed(self) -> None:
            self.stream_from("p", whisper=True, presence=True)

    return app


async def run_action(script: Any, **state: str) -> CommandResult:
    app = App()
    app.channel("Act")(type("Scripted", (ScriptedBase,), {"script": staticmethod(script)}))
    kept = {f"${key}" if key in ("w", "p", "m", "f") else key: value for key, value in state.items()}
    return await perform(app, encode_identifier("Act"), "act", kept)


async def test_repeated_stream_from_adds_the_stream_once() -> None:
    answer = await run_action(lambda self: (self.stream_from("a"), self.stream_from("b"), self.stream_from("a")))
    assert answer == CommandResult(streams=("a", "b"))


async def test_last_stream_with_whispers_gets_them() -> None:
    answer = await run_action(lambda self: (self.stream_from("a", whisper=True), self.stream_from("b", whisper=True)))
    assert answer.own == {"$w": "b", "$f": '"Bo"'}


async def test_stopping_a_stream_ends_its_whispers() -> None:
    assert await run_action(lambda self: self.stop_stream("a"), w="a", p="b") == CommandResult(stopped=("a",), own={"$w": ""})


async def test_stop_and_start_take_effect_in_order() -> None:
    restarted = await run_action(lambda self: (self.stop_stream("a"), self.stream_from("a", presence=True)), p="a")
    joined = PresenceUpdate(True, Member("Bo"))
    assert restarted == CommandResult(streams=("a",), stopped=("a",), own={"$p": "a", "$m": "Bo"}, presence_update=joined)
    gone = await run_action(lambda self: (self.stream_from("a", whisper=True), self.stop_stream("a"), self.stop_stream("a")))
    assert gone == CommandResult(stopped=("a",), own={"$w": "", "$f": ""})


async def test_streams_can_be_started_after_stopping_all() -> None:
    answer = await run_action(
        lambda self: (self.stop_stream("x"), self.stream_from("a"), self.stop_all_streams(), self.stream_from("b")),
        w="o",
        p="o",
    )
    assert answer == CommandResult(streams=("b",), stop_all=True, own={"$w": "", "$p": ""})


@pytest.mark.parametrize("name", ["", None, 7, "\ud800"])
async def test_invalid_stream_name_fails_the_action(name: Any) -> None:
    for script in (
        lambda self: self.stream_from(name),
        lambda self: self.stop_stream(name),
        lambda self: self.broadcast(name, 1),
    ):
        with pytest.raises(ApplicationError, match=r"TypeError|ValueError|UnicodeEncodeError"):
            await run_action(script)


async def test_client_can_join_and_leave_presence() -> None:
    now = await run_action(lambda self: (self.stream_from("a", presence=True), self.join_presence("bo", {"mood": "fine"})))
    assert now.presence_update == PresenceUpdate(True, Member("bo", b'{"mood":"fine"}'))
    assert now.own == {"$p": "a", "$m": "bo"}
    later = await run_action(lambda self: self.join_presence(info=1), p="a")
    assert later.presence_update == PresenceUpdate(True, Member("Bo", b"1"))
    gone = await run_action(lambda self: self.leave_presence(), p="a")
    assert gone.presence_update == PresenceUpdate(False, Member(""))


async def test_join_without_presence_fails(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ApplicationError):
        await run_action(lambda self: self.join_presence("bo"))
    assert "presence=True" in caplog.text


async def test_presence_client_lets_the_client_choose_its_id() -> None:
    assert await run_action(lambda self: self.stream_from("a", presence="client")) == CommandResult(
        streams=("a",), own={"$p": "a"}
    )


async def test_repeated_stream_with_presence_keeps_the_member() -> None:
    again = await run_action(lambda self: self.stream_from("a", presence=True), p="a", m="Bo")
    assert again == CommandResult(streams=("a",))


async def test_presence_and_whispers_use_the_identity_of_the_client(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, str]] = [
        ('{"user_id":42}', "42"),
        ('{"name":"Bo"}', "Bo"),
        ('{"name":"Bo","tenant":1}', '{"name":"Bo","tenant":1}'),
        ('{"who":{"name":"Bo"}}', '{"who":{"name":"Bo"}}'),
        ("user-7", "user-7"),
    ]
    for ids, member in cases:
        with subtests.test(ids=ids):
            answer = await subscribe(bare_presence(), encode_identifier("P"), replace(BO, ids=ids))
            assert answer.presence_update == PresenceUpdate(True, Member(member))
            assert answer.own["$m"] == member
            assert json.loads(answer.own["$f"]) == member


async def test_presence_without_an_identity_is_rejected(caplog: pytest.LogCaptureFixture) -> None:
    for ids in ("", "{}"):
        assert not (await subscribe(bare_presence(), encode_identifier("P"), replace(BO, ids=ids))).accepted
    assert 'presence="client"' in caplog.text


async def test_broadcast_keeps_its_options() -> None:
    answer = await run_action(lambda self: self.broadcast("a", None, exclude_self=True, transient=True, uid="u", type="note"))
    assert answer.publications == (Publication("a", b"null", "s-1", "note", True, "u"),)


async def test_dates_can_be_transmitted_and_objects_cannot(caplog: pytest.LogCaptureFixture) -> None:
    answer = await run_action(lambda self: self.transmit(datetime(2030, 1, 2)))
    assert json.loads(answer.transmissions[0])["message"] == "2030-01-02T00:00:00"
    with pytest.raises(ApplicationError):
        await run_action(lambda self: self.transmit(object()))
    assert "the data of transmit cannot be written as JSON" in caplog.text


async def test_streams_cannot_change_in_unsubscribed(caplog: pytest.LogCaptureFixture) -> None:
    app = App()

    @app.channel
    class Late(Channel):
        def unsubscribed(self) -> None:
            self.stream_from("a")

    with pytest.raises(ApplicationError, match=r"Late\.unsubscribed failed"):
        await unsubscribe(app, encode_identifier("Late"))
    assert "stream_from cannot be used in unsubscribed" in caplog.text


async def test_unsubscribed_can_broadcast() -> None:
    app = App()

    @app.channel
    class Room(Channel):
        async def unsubscribed(self) -> None:
            self.broadcast("room", {"left": self.state["name"]})

    assert (await unsubscribe(app, encode_identifier("Room"), {"name": '"Bo"'})).publications == (
        Publication("room", b'{"left":"Bo"}'),
    )


async def test_calls_after_the_handler_are_rejected() -> None:
    kept: list[Channel] = []
    await run_action(kept.append)
    with pytest.raises(RuntimeError, match=r"transmit .* app\.publish"):
        kept[0].transmit(1)
    with pytest.raises(RuntimeError, match=r"broadcast .* app\.publish"):
        kept[0].broadcast("a", 1)
    with pytest.raises(RuntimeError, match=r"stream_from .* app\.publish"):
        kept[0].stream_from("a")
