"""Messages in JSON: names, absent values and responses of other applications."""

from typing import Any

import msgspec
import pytest

from ropewalk.adapters.apps.rpc.grpc import decode_protobuf, encode_protobuf
from ropewalk.adapters.apps.rpc.messages import (
    COMMAND,
    CONNECT,
    DISCONNECT,
    RESTORE,
    CommandMessage,
    CommandResponse,
    ConnectionResponse,
    Env,
    EnvResponse,
    Method,
    Status,
    from_plain,
)
from ropewalk.model.errors import ApplicationError
from tests.unit.adapters.apps.rpc.sample_messages import SAMPLES, field


def test_messages_survive_a_json_round_trip(subtests: pytest.Subtests) -> None:
    for name in SAMPLES:
        with subtests.test(name=name):
            message, _ = SAMPLES[name]
            assert from_plain(msgspec.json.decode(msgspec.json.encode(message)), type(message)) == message


def test_zero_values_are_left_out_in_protobuf_and_json(subtests: pytest.Subtests) -> None:
    methods: list[Method[Any, Any]] = [CONNECT, COMMAND, DISCONNECT, RESTORE]
    for method in methods:
        with subtests.test(method=method.name):
            for kind in (method.request, method.response):
                assert encode_protobuf(kind()) == b""
                assert msgspec.json.encode(kind()) == b"{}"
                assert decode_protobuf(b"", kind) == from_plain({}, kind) == kind()


def test_json_of_a_command_has_the_protobuf_names() -> None:
    call = CommandMessage("subscribe", "id", "me", env=Env("http://x/", {}, {"c": "1"}))
    assert msgspec.json.decode(msgspec.json.encode(call)) == {
        "command": "subscribe",
        "identifier": "id",
        "connection_identifiers": "me",
        "env": {"url": "http://x/", "cstate": {"c": "1"}},
    }


def test_unknown_fields_are_ignored() -> None:
    message, known = SAMPLES["CommandResponse"]
    assert decode_protobuf(known + field(15, b"news") + b"\x70\x01", CommandResponse) == message
    assert from_plain({"status": 1, "news": {"a": [1]}, "env": {"more": 1}}, CommandResponse) == CommandResponse(Status.SUCCESS)


def test_status_is_a_number_or_a_name(subtests: pytest.Subtests) -> None:
    for status in [2, "FAILURE"]:
        with subtests.test(status=status):
            assert from_plain({"status": status}, ConnectionResponse).status is Status.FAILURE


def test_state_may_have_a_key_named_status() -> None:
    response = from_plain({"status": "SUCCESS", "env": {"cstate": {"status": "SUCCESS"}}}, ConnectionResponse)
    assert response.env.cstate == {"status": "SUCCESS"}


def test_null_is_a_zero_value() -> None:
    plain = {"status": 1, "transmissions": None, "env": {"cstate": {"gone": None}, "istate": None}, "presence": None}
    assert from_plain(plain, CommandResponse) == CommandResponse(Status.SUCCESS, env=EnvResponse({"gone": ""}))


def test_responses_of_another_shape_are_application_errors(subtests: pytest.Subtests) -> None:
    rows: list[object] = [
        None,
        [],
        "yes",
        {"status": 3},
        {"status": "MAYBE"},
        {"streams": "s"},
        {"streams": [1]},
        {"env": []},
        {"disconnect": "no"},
    ]
    for plain in rows:
        with subtests.test(plain=plain), pytest.raises(ApplicationError, match="cannot be read"):
            from_plain(plain, CommandResponse)
