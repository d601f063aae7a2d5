"""A message of every kind, and its bytes in protobuf."""

from ropewalk.adapters.apps.rpc.messages import (
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
)


def field(number: int, content: bytes) -> bytes:
    """A length-delimited protobuf field with a small number and length."""
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
