"""The messages on both wires. What is pinned here by hand is what applications of others rely on."""

import msgspec
import pytest

from ropewalk.adapters.apps.rpc import protobuf
from ropewalk.adapters.apps.rpc.messages import (
    COMMAND,
    CONNECT,
    DISCONNECT,
    RESTORE,
    CommandMessage,
    CommandResponse,
    ConnectionRequest,
    ConnectionResponse,
    DisconnectRequest,
    DisconnectResponse,
    Env,
    EnvResponse,
    PresenceResponse,
    RestoreRequest,
    RestoreResponse,
    RpcMessage,
    Status,
    from_plain,
)
from ropewalk.model.errors import ApplicationError


def field(number: int, content: bytes) -> bytes:
    """A field with a length, as protobuf writes it while number and length are small."""
    return bytes((number << 3 | 2, len(content))) + content


def entry(number: int, key: bytes, value: bytes) -> bytes:
    return field(number, field(1, key) + field(2, value))


ENV = Env("http://x/cable", {"cookie": "a=1"}, {"c": "1"}, {"i": "2"})
ENV_BYTES = field(1, b"http://x/cable") + entry(2, b"cookie", b"a=1") + entry(3, b"c", b"1") + entry(4, b"i", b"2")
CHANGES = EnvResponse({"c": "1"}, {"i": ""})
CHANGES_BYTES = entry(1, b"c", b"1") + entry(2, b"i", b"")

SAMPLES: dict[str, tuple[RpcMessage, bytes]] = {
    "ConnectionRequest": (ConnectionRequest(ENV), field(3, ENV_BYTES)),
    "ConnectionResponse": (
        ConnectionResponse(Status.SUCCESS, "me", ["a", "b"], "no", CHANGES),
        b"\x08\x01" + field(2, b"me") + field(3, b"a") + field(3, b"b") + field(4, b"no") + field(5, CHANGES_BYTES),
    ),
    "CommandMessage": (
        CommandMessage("message", "id", "me", "{}", ENV),
        field(1, b"message") + field(2, b"id") + field(3, b"me") + field(4, b"{}") + field(5, ENV_BYTES),
    ),
    "CommandResponse": (
        CommandResponse(
            Status.FAILURE, True, True, ["s"], ["t"], "no", CHANGES, ["old"], PresenceResponse("join", "7", '{"n":1}', 15)
        ),
        b"\x08\x02\x10\x01\x18\x01"
        + (field(4, b"s") + field(5, b"t") + field(6, b"no") + field(7, CHANGES_BYTES) + field(8, b"old"))
        + field(9, field(1, b"join") + field(2, b"7") + field(3, b'{"n":1}') + b"\x20\x0f"),
    ),
    "DisconnectRequest": (
        DisconnectRequest("me", ["id", "other"], ENV),
        field(1, b"me") + field(2, b"id") + field(2, b"other") + field(5, ENV_BYTES),
    ),
    "DisconnectResponse": (DisconnectResponse(Status.SUCCESS, "no"), b"\x08\x01" + field(2, b"no")),
    "RestoreRequest": (
        RestoreRequest("old", "me", ["id"], ENV),
        field(1, b"old") + field(2, b"me") + field(3, b"id") + field(5, ENV_BYTES),
    ),
    "RestoreResponse": (
        RestoreResponse(Status.SUCCESS, "no", ["t"], True, CHANGES),
        b"\x08\x01" + field(2, b"no") + field(3, b"t") + b"\x20\x01" + field(5, CHANGES_BYTES),
    ),
}


def test_a_connection_request_is_these_very_bytes() -> None:
    request = ConnectionRequest(Env("http://x/", {"cookie": "a=1"}))
    assert protobuf.encode(request).hex(" ") == (
        "1a 1a "  # field 3, env: 26 bytes
        "0a 09 68 74 74 70 3a 2f 2f 78 2f "  # field 1, url: http://x/
        "12 0d "  # field 2, an entry of headers: 13 bytes
        "0a 06 63 6f 6f 6b 69 65 "  # key: cookie
        "12 03 61 3d 31"  # value: a=1
    )


def test_every_field_has_its_number(subtests: pytest.Subtests) -> None:
    for name in SAMPLES:
        with subtests.test(name=name):
            message, expected = SAMPLES[name]
            assert protobuf.encode(message) == expected
            assert protobuf.decode(expected, type(message)) == message


def test_a_message_is_the_same_after_a_walk_through_json(subtests: pytest.Subtests) -> None:
    for name in SAMPLES:
        with subtests.test(name=name):
            message, _ = SAMPLES[name]
            assert from_plain(msgspec.json.decode(msgspec.json.encode(message)), type(message)) == message


def test_zero_values_are_left_out_on_both_wires(subtests: pytest.Subtests) -> None:
    methods: list[Method[Any, Any]] = [CONNECT, COMMAND, DISCONNECT, RESTORE]
    for method in methods:
        with subtests.test(method=method.name):
            for kind in (method.request, method.response):
                assert protobuf.encode(kind()) == b""
                assert msgspec.json.encode(kind()) == b"{}"
                assert protobuf.decode(b"", kind) == from_plain({}, kind) == kind()


def test_the_json_of_a_command_has_the_names_of_the_wire() -> None:
    call = CommandMessage("subscribe", "id", "me", env=Env("http://x/", {}, {"c": "1"}))
    assert msgspec.json.decode(msgspec.json.encode(call)) == {
        "command": "subscribe",
        "identifier": "id",
        "connection_identifiers": "me",
        "env": {"url": "http://x/", "cstate": {"c": "1"}},
    }


def test_unknown_fields_are_passed_over() -> None:
    message, known = SAMPLES["CommandResponse"]
    assert protobuf.decode(known + field(15, b"news") + b"\x70\x01", CommandResponse) == message
    assert from_plain({"status": 1, "news": {"a": [1]}, "env": {"more": 1}}, CommandResponse) == CommandResponse(Status.SUCCESS)


def test_a_status_is_a_number_or_a_name(subtests: pytest.Subtests) -> None:
    for status in [2, "FAILURE"]:
        with subtests.test(status=status):
            assert from_plain({"status": status}, ConnectionResponse).status is Status.FAILURE


def test_a_state_may_have_a_key_that_is_called_status() -> None:
    response = from_plain({"status": "SUCCESS", "env": {"cstate": {"status": "SUCCESS"}}}, ConnectionResponse)
    assert response.env.cstate == {"status": "SUCCESS"}


def test_null_is_a_zero_value() -> None:
    plain = {"status": 1, "transmissions": None, "env": {"cstate": {"gone": None}, "istate": None}, "presence": None}
    assert from_plain(plain, CommandResponse) == CommandResponse(Status.SUCCESS, env=EnvResponse({"gone": ""}))


def test_an_answer_of_another_shape_is_the_applications_error(subtests: pytest.Subtests) -> None:
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


def test_bytes_that_are_no_such_message_are_the_applications_error(subtests: pytest.Subtests) -> None:
    for data in [b"\xff\xff\xff", field(4, b"\xff"), b"\x08\x07"]:
        with subtests.test(data=data), pytest.raises(ApplicationError, match="cannot be read"):
            protobuf.decode(data, CommandResponse)


def test_text_that_is_not_unicode_is_refused_before_it_is_sent() -> None:
    with pytest.raises(ApplicationError, match="not Unicode"):
        protobuf.encode(CommandMessage("message", "\ud800"))
