"""Conversion between the engine's records and RPC messages."""

import json

import pytest

from ropewalk.adapters.apps.rpc import application as records
from ropewalk.adapters.apps.rpc.messages import (
    CommandMessage,
    CommandResponse,
    ConnectionRequest,
    ConnectionResponse,
    DisconnectResponse,
    Env,
    EnvResponse,
    PresenceResponse,
    RestoreResponse,
    Status,
)
from ropewalk.model.application import (
    Action,
    CallContext,
    CommandCall,
    CommandResult,
    ConnectResult,
    DisconnectCall,
    PresenceUpdate,
    RestoreCall,
    RestoreResult,
)
from ropewalk.model.errors import ApplicationError
from ropewalk.model.presence import Member

CONTEXT = CallContext("sid", "http://x/cable", {"cookie": "a=1", "REMOTE_ADDR": "10.0.0.1"}, "me", {"c": "1"})
ENV = Env("http://x/cable", {"cookie": "a=1", "REMOTE_ADDR": "10.0.0.1"}, {"c": "1"})


def test_connection_request_has_url_headers_and_state() -> None:
    assert records.connection_request(CONTEXT) == ConnectionRequest(ENV)


def test_command_has_the_state_of_its_subscription() -> None:
    message = records.command_message(CommandCall(CONTEXT, Action.PERFORM, "id", {"i": "2"}, '{"action":"speak"}'))
    env = Env(ENV.url, ENV.headers, {"c": "1"}, {"i": "2"})
    assert message == CommandMessage("message", "id", "me", '{"action":"speak"}', env)


def test_disconnect_and_restore_calls_have_subscription_states_as_json() -> None:
    subscriptions = {"a": {"$w": "chat"}, "b": {}}
    disconnect_call = records.disconnect_request(DisconnectCall(CONTEXT, subscriptions))
    restore_call = records.restore_request(RestoreCall(CONTEXT, "former", subscriptions))
    assert (disconnect_call.identifiers, restore_call.identifiers, restore_call.former_sid) == ("me", "me", "former")
    for request in (disconnect_call, restore_call):
        assert request.subscriptions == ["a", "b"]
        assert {name: json.loads(text) for name, text in request.env.istate.items()} == {"a": {"$w": "chat"}}


def test_header_bytes_that_are_not_utf8_are_replaced() -> None:
    context = CallContext("sid", "http://x/\udcff", {"cookie": "név=\udcfa"})
    env = records.connection_request(context).env
    assert env.headers["cookie"].startswith("név=\ufffd")
    assert "\ufffd" in env.url


def test_connection_response_is_read() -> None:
    response = ConnectionResponse(Status.SUCCESS, "me", ["hi"], env=EnvResponse({"c": "1"}))
    assert records.connect_result(response) == ConnectResult(True, "me", ("hi",), {"c": "1"})
    refused = ConnectionResponse(Status.FAILURE, transmissions=["bye"], error_msg="who are you")
    assert records.connect_result(refused) == ConnectResult(False, "", ("bye",), {}, "who are you")


def test_command_response_is_read() -> None:
    response = CommandResponse(
        Status.SUCCESS,
        disconnect=True,
        stop_streams=True,
        streams=["s"],
        transmissions=["t"],
        error_msg="why",
        env=EnvResponse({"c": ""}, {"i": "2"}),
        stopped_streams=["old"],
        presence=PresenceResponse("join", "7", '{"n": 1}'),
    )
    presence_update = PresenceUpdate(True, Member("7", b'{"n": 1}'))
    assert records.command_result(response) == CommandResult(
        True, ("t",), ("s",), ("old",), True, {"c": ""}, {"i": "2"}, presence_update, (), True, "why"
    )
    assert records.command_result(CommandResponse(Status.FAILURE)) == CommandResult(accepted=False)


def test_presence_info_is_json_or_becomes_a_string(subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, bytes]] = [
        ("", b""),
        ("12345678901234567890", b"12345678901234567890"),
        ("plain text", b'"plain text"'),
        ("{", b'"{"'),
        ("[" * 128 + "]" * 128, b"[" * 128 + b"]" * 128),
    ]
    for info, expected in rows:
        with subtests.test(info=info, expected=expected):
            answer = records.command_result(CommandResponse(Status.SUCCESS, presence=PresenceResponse("leave", "7", info)))
            assert answer.presence_update == PresenceUpdate(False, Member("7", expected))


def test_presence_info_that_is_nested_too_deeply_is_an_application_error(subtests: pytest.Subtests) -> None:
    for depth in [129, 500, 9000]:
        with subtests.test(depth=depth):
            presence = PresenceResponse("join", "7", "[" * depth + "]" * depth)
            with pytest.raises(ApplicationError, match="nested more than 128 deep"):
                records.command_result(CommandResponse(Status.SUCCESS, presence=presence))


def test_invalid_presence_is_an_application_error(subtests: pytest.Subtests) -> None:
    for presence in [PresenceResponse("join"), PresenceResponse("dance", "7")]:
        with subtests.test(presence=presence), pytest.raises(ApplicationError, match="presence"):
            records.command_result(CommandResponse(Status.SUCCESS, presence=presence))


def test_restore_response_is_read() -> None:
    env = EnvResponse({"c": ""}, {"a": '{"i":"2","gone":""}'})
    response = RestoreResponse(Status.SUCCESS, transmissions=["t"], env=env)
    assert records.restore_result(response) == RestoreResult(("t",), {"c": ""}, {"a": {"i": "2", "gone": ""}})


def test_refused_restore_call_disconnects() -> None:
    assert records.restore_result(RestoreResponse(Status.FAILURE)).disconnect
    assert records.restore_result(RestoreResponse(Status.SUCCESS, disconnect=True)).disconnect


def test_invalid_subscription_state_is_an_application_error(subtests: pytest.Subtests) -> None:
    for text in ["", "{", '{"i":1}', "[" * 9000]:
        with subtests.test(text=text), pytest.raises(ApplicationError, match="state of a subscription"):
            records.restore_result(RestoreResponse(Status.SUCCESS, env=EnvResponse(istate={"a": text})))


def test_error_in_any_response_is_an_application_error() -> None:
    with pytest.raises(ApplicationError, match="it broke"):
        records.connect_result(ConnectionResponse(error_msg="it broke"))
    with pytest.raises(ApplicationError, match="it broke"):
        records.command_result(CommandResponse(error_msg="it broke"))
    with pytest.raises(ApplicationError, match="it broke"):
        records.restore_result(RestoreResponse(error_msg="it broke"))
    with pytest.raises(ApplicationError, match="without a message"):
        records.acknowledged(DisconnectResponse())
    records.acknowledged(DisconnectResponse(Status.FAILURE))
