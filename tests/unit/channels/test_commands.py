"""Subscribing, actions, unsubscribing: what a channel's handlers ask for is the answer, and nothing of it if they fail."""

import json
import logging
from datetime import datetime
from typing import Any

import pytest
from msgspec.structs import replace

from ropewalk.channels import ActionError, App, BadCall, Channel, action
from ropewalk.channels.replies import failed
from ropewalk.model.application import CommandResult, PresenceUpdate, Reply
from ropewalk.model.errors import ApplicationError, ServerError, Unavailable
from ropewalk.model.messages import Publication
from ropewalk.model.presence import Member
from ropewalk.testing.auth import HOSTILE_IDENTIFIERS
from tests.unit.channels.requests import BO, named, perform, send, subscribe, unsubscribe

app = App()
ROOM = named("Chat", room="a", deep={"n": 1.5, "list": [None, True]})


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


async def test_subscribed_says_what_is_streamed_and_transmitted() -> None:
    assert await subscribe(app, ROOM) == CommandResult(
        transmissions=(message({"hello": "Bo"}),),
        streams=("chat/a",),
        own={"$w": "chat/a", "$f": '"Bo"', "$p": "chat/a", "$m": "Bo"},
        presence_update=PresenceUpdate(True, Member("Bo")),
    )


async def test_a_channel_without_subscribed_accepts_everybody_and_streams_nothing() -> None:
    assert await subscribe(app, named("Bare")) == CommandResult()
    assert await unsubscribe(app, named("Bare")) == CommandResult()


async def test_an_action_gets_what_the_client_sent_and_broadcasts_when_it_is_done() -> None:
    answer = await perform(app, ROOM, "speak", text="hi")
    assert answer == CommandResult(publications=(Publication("chat/a", b'{"text":"hi"}'),))


async def test_an_action_without_data_is_called_without_and_sees_its_params_as_they_were_sent() -> None:
    answer = await perform(app, ROOM, "whoami", ignored=1)
    params = {"room": "a", "deep": {"n": 1.5, "list": [None, True]}}
    assert answer.transmissions == (message(["s-1", params, True]),)


async def test_data_that_names_no_action_is_received() -> None:
    assert (await send(app, ROOM, '{"a":1}')).transmissions == (message({"received": {"a": 1}}),)


async def test_data_that_names_no_action_is_refused_where_nothing_receives() -> None:
    with pytest.raises(BadCall, match="Bare has no action 'receive'"):
        await send(app, named("Bare"), '{"a":1}')


@pytest.mark.parametrize("name", ["not_for_clients", "subscribed", "transmit", "fail", "__init__", "state", "", "x" * 10_000])
async def test_only_actions_can_be_called(name: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "ropewalk.channels")  # clients could fill a log otherwise
    with pytest.raises(BadCall, match="Chat has no action"):
        await perform(app, ROOM, name)
    [record] = caplog.records
    assert (record.name, record.levelno) == ("ropewalk.channels", logging.DEBUG)
    reason = vars(record)["reason"]
    assert "Chat has no action" in reason
    assert name[:50] in reason
    assert len(reason) < 150


@pytest.mark.parametrize("data", ["", "hi", "[1]", "null", "{", '{"action":1}', '{"action":null}', "[" * 50_000, '"\\ud800"'])
async def test_data_that_cannot_be_read_is_refused(data: str) -> None:
    with pytest.raises(BadCall):
        await send(app, ROOM, data)


@pytest.mark.parametrize("case", HOSTILE_IDENTIFIERS)
async def test_an_identifier_that_names_no_channel_is_rejected_with_a_reason(case: str) -> None:
    answer = await subscribe(app, HOSTILE_IDENTIFIERS[case])
    assert not answer.accepted
    assert 0 < len(answer.reason) < 150
    with pytest.raises(BadCall):
        await send(app, HOSTILE_IDENTIFIERS[case], "{}")


async def test_an_action_that_fails_has_done_nothing_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ApplicationError, match=r"^Chat\.fail failed: ZeroDivisionError$"):
        await perform(app, ROOM, "fail-now")
    assert "Chat.fail failed" in caplog.text
    assert "Traceback" in caplog.text


async def test_a_subscribed_that_fails_rejects_the_subscription(caplog: pytest.LogCaptureFixture) -> None:
    assert await subscribe(app, named("Chat")) == CommandResult(accepted=False, reason="Chat.subscribed failed: KeyError")
    assert "Traceback" in caplog.text


async def test_an_action_may_refuse_and_tell_the_client_something() -> None:
    answer = await perform(app, ROOM, "refuse")
    told = Reply("refuse", code="rejected")
    assert answer == CommandResult(accepted=False, transmissions=(message("not for you"),), reason="too loud", reply=told)


async def test_a_handler_may_close_the_connection() -> None:
    assert await perform(app, ROOM, "leave") == CommandResult(disconnect=True)


async def test_a_subscription_that_is_rejected_streams_nothing() -> None:
    app = App()

    @app.channel
    class Closed(Channel):
        def subscribed(self) -> None:
            self.stream_from("a", whisper=True)
            self.transmit("closed")
            self.connection.state["seen"] = True
            self.reject()

    answer = await subscribe(app, named("Closed"))
    assert answer == CommandResult(False, (message("closed", named("Closed")),), reason="rejected by Closed.subscribed")


async def test_subclasses_inherit_actions_and_may_change_them() -> None:
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

    said = [(await perform(app, named("Chat"), name)).transmissions[0] for name in ("one", "two")]
    assert [json.loads(text)["message"] for text in said] == ["base", {"action": "two"}]


# --- replies ----------------------------------------------------------------------------------------------------------


@app.channel
class Desk(Channel):
    @action
    async def add(self, data: dict[str, Any]) -> dict[str, Any]:
        return {"sum": data["a"] + data["b"], "keys": sorted(data)}

    @action
    def nothing(self) -> None: ...

    @action
    def unsayable(self) -> object:
        self.transmit("before")
        return object()

    @action
    async def deny(self) -> None:
        self.transmit("listen")
        raise ActionError("that is too long", code="too_long")

    @action
    def falsy(self) -> int:
        return 0


DESK = named("Desk")


async def call(action: str, reply_to: object, **data: object) -> CommandResult:
    return await send(app, DESK, json.dumps({"action": action, **data, "$reply_to": reply_to}))


async def test_what_an_action_returns_is_its_reply_and_has_the_name_of_the_call() -> None:
    answer = await call("add", "c-7", a=1, b=2)
    assert answer.reply == Reply("add", b'"c-7"', b'{"sum":3,"keys":["a","action","b"]}')
    assert (await perform(app, DESK, "add", a=1, b=2)).reply == Reply("add", b"null", answer.reply.result)
    assert (await perform(app, DESK, "falsy")).reply == Reply("falsy", b"null", b"0")


async def test_an_action_that_returns_nothing_replies_only_to_a_call_with_a_name() -> None:
    assert (await perform(app, DESK, "nothing")).reply is None
    assert (await call("nothing", 7)).reply == Reply("nothing", b"7", b"null")


async def test_an_action_error_is_told_with_its_words() -> None:
    told = Reply("deny", b"1", code="too_long", text="that is too long")
    answer = await call("deny", 1)
    assert answer == CommandResult(False, (message("listen", DESK),), reason="that is too long", reply=told)


async def test_what_cannot_be_said_as_json_fails_the_action(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ApplicationError, match=r"Desk\.unsayable failed"):
        await perform(app, DESK, "unsayable")
    assert "what unsayable returned cannot be written as JSON" in caplog.text


@pytest.mark.parametrize("name", [{"a": 1}, ["x"], 1.5, "x" * 129, None, True])
async def test_a_name_that_cannot_be_one_is_refused(name: object) -> None:
    with pytest.raises(BadCall, match="reply_to"):
        await call("nothing", name)


@pytest.mark.parametrize(
    ("data", "error", "reply"),
    [
        ('{"action":"sing","$reply_to":1}', BadCall("no", "unknown_action"), Reply("sing", b"1", code="unknown_action")),
        ('{"action":"add","$reply_to":"x"}', ApplicationError("secret"), Reply("add", b'"x"', code="failed")),
        ("{}", Unavailable("secret"), Reply("receive", code="unavailable")),
        ('{"action":7}', BadCall("no"), Reply("7", code="bad_data")),
        ('{"action":"add","$reply_to":[]}', BadCall("no"), Reply("add", code="bad_data")),
        ('{"action":7,"$reply_to":"x"}', BadCall("no"), Reply("7", b'"x"', code="bad_data")),
        ('{"action":"add","$reply_to":null}', BadCall("no"), Reply("add", code="bad_data")),
        ("[1]", BadCall("no"), Reply("receive", code="bad_data")),
        ("nonsense", BadCall("no"), Reply("receive", code="bad_data")),
    ],
)
def test_a_call_that_fails_is_answered_without_the_reason(data: str, error: ServerError, reply: Reply) -> None:
    assert failed(data, error) == reply


# --- streams and presence --------------------------------------------------------------------------------------------


class Act(Channel):
    """Does what its test says."""

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


async def acted(script: Any, **state: str) -> CommandResult:
    app = App()
    app.channel("Act")(type("Acting", (Act,), {"script": staticmethod(script)}))
    kept = {f"${key}" if key in ("w", "p", "m", "f") else key: value for key, value in state.items()}
    return await perform(app, named("Act"), "act", kept)


async def test_a_stream_asked_for_twice_is_streamed_once() -> None:
    answer = await acted(lambda self: (self.stream_from("a"), self.stream_from("b"), self.stream_from("a")))
    assert answer == CommandResult(streams=("a", "b"))


async def test_the_last_stream_with_whispers_has_them() -> None:
    answer = await acted(lambda self: (self.stream_from("a", whisper=True), self.stream_from("b", whisper=True)))
    assert answer.own == {"$w": "b", "$f": '"Bo"'}


async def test_a_stream_that_is_stopped_takes_its_whispers_and_presence_along() -> None:
    assert await acted(lambda self: self.stop_stream("a"), w="a", p="b") == CommandResult(stopped=("a",), own={"$w": ""})


async def test_stopping_and_starting_happen_as_they_were_said() -> None:
    anew = await acted(lambda self: (self.stop_stream("a"), self.stream_from("a", presence=True)), p="a")
    seated = PresenceUpdate(True, Member("Bo"))
    assert anew == CommandResult(streams=("a",), stopped=("a",), own={"$p": "a", "$m": "Bo"}, presence_update=seated)
    gone = await acted(lambda self: (self.stream_from("a", whisper=True), self.stop_stream("a"), self.stop_stream("a")))
    assert gone == CommandResult(stopped=("a",), own={"$w": "", "$f": ""})


async def test_all_streams_can_be_stopped_and_others_begun() -> None:
    answer = await acted(
        lambda self: (self.stop_stream("x"), self.stream_from("a"), self.stop_all_streams(), self.stream_from("b")),
        w="o",
        p="o",
    )
    assert answer == CommandResult(streams=("b",), stop_all=True, own={"$w": "", "$p": ""})


@pytest.mark.parametrize("name", ["", None, 7, "\ud800"])
async def test_what_names_no_stream_is_an_error(name: Any) -> None:
    for script in (
        lambda self: self.stream_from(name),
        lambda self: self.stop_stream(name),
        lambda self: self.broadcast(name, 1),
    ):
        with pytest.raises(ApplicationError, match=r"TypeError|ValueError|UnicodeEncodeError"):
            await acted(script)


async def test_a_client_can_be_seated_where_presence_is_on() -> None:
    now = await acted(lambda self: (self.stream_from("a", presence=True), self.join_presence("bo", {"mood": "fine"})))
    assert now.presence_update == PresenceUpdate(True, Member("bo", b'{"mood":"fine"}'))
    assert now.own == {"$p": "a", "$m": "bo"}
    later = await acted(lambda self: self.join_presence(info=1), p="a")
    assert later.presence_update == PresenceUpdate(True, Member("Bo", b"1"))
    gone = await acted(lambda self: self.leave_presence(), p="a")
    assert gone.presence_update == PresenceUpdate(False, Member(""))


async def test_a_client_cannot_be_seated_where_there_is_no_presence(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ApplicationError):
        await acted(lambda self: self.join_presence("bo"))
    assert "presence=True" in caplog.text


async def test_a_client_may_choose_its_id_where_the_channel_says_so() -> None:
    assert await acted(lambda self: self.stream_from("a", presence="client")) == CommandResult(streams=("a",), own={"$p": "a"})


async def test_who_streams_again_from_where_it_is_present_keeps_what_is_told_of_it() -> None:
    again = await acted(lambda self: self.stream_from("a", presence=True), p="a", m="Bo")
    assert again == CommandResult(streams=("a",))


@pytest.mark.parametrize(
    ("ids", "member"),
    [
        ('{"user_id":42}', "42"),
        ('{"name":"Bo"}', "Bo"),
        ('{"name":"Bo","tenant":1}', '{"name":"Bo","tenant":1}'),
        ('{"who":{"name":"Bo"}}', '{"who":{"name":"Bo"}}'),
        ("user-7", "user-7"),
    ],
)
async def test_a_client_is_present_and_whispers_under_its_own_identity(ids: str, member: str) -> None:
    answer = await subscribe(bare_presence(), named("P"), replace(BO, ids=ids))
    assert answer.presence_update == PresenceUpdate(True, Member(member))
    assert answer.own["$m"] == member
    assert json.loads(answer.own["$f"]) == member


async def test_nobody_is_present_who_is_nobody(caplog: pytest.LogCaptureFixture) -> None:
    for ids in ("", "{}"):
        assert not (await subscribe(bare_presence(), named("P"), replace(BO, ids=ids))).accepted
    assert 'presence="client"' in caplog.text


async def test_a_broadcast_carries_what_was_said_of_it() -> None:
    answer = await acted(lambda self: self.broadcast("a", None, exclude_self=True, transient=True, uid="u", type="note"))
    assert answer.publications == (Publication("a", b"null", "s-1", "note", True, "u"),)


async def test_dates_may_be_sent_and_objects_may_not(caplog: pytest.LogCaptureFixture) -> None:
    answer = await acted(lambda self: self.transmit(datetime(2030, 1, 2)))
    assert json.loads(answer.transmissions[0])["message"] == "2030-01-02T00:00:00"
    with pytest.raises(ApplicationError):
        await acted(lambda self: self.transmit(object()))
    assert "what is transmitted cannot be written as JSON" in caplog.text


async def test_streams_cannot_change_in_unsubscribed(caplog: pytest.LogCaptureFixture) -> None:
    app = App()

    @app.channel
    class Late(Channel):
        def unsubscribed(self) -> None:
            self.stream_from("a")

    with pytest.raises(ApplicationError, match=r"Late\.unsubscribed failed"):
        await unsubscribe(app, named("Late"))
    assert "stream_from cannot be used in unsubscribed" in caplog.text


async def test_unsubscribed_may_tell_the_others() -> None:
    app = App()

    @app.channel
    class Room(Channel):
        async def unsubscribed(self) -> None:
            self.broadcast("room", {"left": self.state["name"]})

    assert (await unsubscribe(app, named("Room"), {"name": '"Bo"'})).publications == (Publication("room", b'{"left":"Bo"}'),)


async def test_who_asks_after_the_handler_is_done_is_told_that_nobody_listens() -> None:
    kept: list[Channel] = []
    await acted(kept.append)
    with pytest.raises(RuntimeError, match=r"transmit .* app\.publish"):
        kept[0].transmit(1)
    with pytest.raises(RuntimeError, match=r"broadcast .* app\.publish"):
        kept[0].broadcast("a", 1)
    with pytest.raises(RuntimeError, match=r"stream_from .* app\.publish"):
        kept[0].stream_from("a")
