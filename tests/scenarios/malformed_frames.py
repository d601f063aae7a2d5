"""Malformed input over WebSocket: invalid frames, messages that are not commands, and commands that are refused."""

import json

from tests.cable import identifier
from tests.scenarios.malformed import STREAM, Case, command, frames, text
from tests.tcp import CLOSE, CONTINUATION, PING, TEXT, client_frame

CABLE_LIMIT = 65536
DEPTH = 20_000

OWN = identifier(STREAM)
ELSEWHERE = identifier("malformed/elsewhere")


def _history(**position: object) -> str:
    return json.dumps({"command": "history", "identifier": OWN, "history": {"streams": {STREAM: position}}})


def _pieces(count: int, size: int) -> bytes:
    return b"".join(client_frame(b" " * size, CONTINUATION if number else TEXT, fin=False) for number in range(count))


FRAMES: dict[str, Case] = {
    "frame-unmasked": frames(client_frame(b"{}", masked=False)),
    "frame-reserved-bits": frames(client_frame(b"{}", reserved=0b100)),
    "frame-unknown-opcode": frames(client_frame(b"{}", opcode=0x3)),
    "frame-control-fragmented": frames(client_frame(b"", PING, fin=False)),
    "frame-control-too-long": frames(client_frame(b"." * 126, PING)),
    "frame-length-not-shortest": frames(b"\x81\xfe\x00\x02mask{}"),
    "frame-length-negative": frames(b"\x81\xff" + (2**63).to_bytes(8) + b"mask"),
    "frame-length-enormous": frames(b"\x81\xff" + (2**40).to_bytes(8) + b"mask"),
    "frame-too-long": frames(client_frame(b" " * (CABLE_LIMIT + 1))),
    "fragments-too-long": frames(_pieces(3, CABLE_LIMIT // 2)),
    "fragments-too-many": frames(_pieces(1025, 0)),
    "fragments-without-beginning": frames(client_frame(b"{}", CONTINUATION)),
    "fragments-mixed-up": frames(client_frame(b"{", fin=False), client_frame(b"{}")),
    "fragments-of-nonsense": frames(client_frame(b"{", fin=False), client_frame(b"]", CONTINUATION)),
    "close-half-a-code": frames(client_frame(b"\x03", CLOSE)),
    "close-text-not-utf8": frames(client_frame(b"\x03\xe8\xff\xff", CLOSE)),
}

MESSAGES: dict[str, Case] = {
    "message-empty": text(""),
    "message-not-utf8": text(b'{"command":"\xff\xfe"}'),
    "message-not-json": text("{command: subscribe}"),
    "message-cut-off": text('{"command":"subscribe'),
    "message-two-objects": text('{"command":"ping"}{"command":"ping"}'),
    "message-not-a-number": text('{"command":"history","identifier":"x","history":{"since":NaN}}'),
    "message-lone-surrogate": text('{"command":"subscribe","identifier":"\\ud800"}'),
    "message-nested-too-deep": text('{"command":"whisper","data":' + "[" * DEPTH + "]" * DEPTH + "}"),
    "message-array": text('[{"command":"ping"}]'),
    "message-number": text("42"),
    "message-null": text("null"),
    "command-number": text('{"command":1}'),
    "identifier-object": text('{"command":"subscribe","identifier":{"channel":"$pubsub","stream_name":"x"}}'),
    "history-array": text(json.dumps({"command": "history", "identifier": OWN, "history": []})),
    "history-since-text": text(json.dumps({"command": "history", "identifier": OWN, "history": {"since": "today"}})),
    "history-since-enormous": text('{"command":"history","identifier":"x","history":{"since":1e999}}'),
    "history-offset-negative": text(_history(epoch="e", offset=-1)),
    "history-offset-enormous": text(_history(epoch="e", offset=2**63)),
    "history-offset-text": text(_history(epoch="e", offset="1")),
    "history-offset-fraction": text(_history(epoch="e", offset=1.5)),
    "history-epoch-missing": text(_history(offset=1)),
    "history-epoch-number": text(_history(epoch=1, offset=1)),
    "presence-id-number": text(json.dumps({"command": "join", "identifier": OWN, "presence": {"id": 42}})),
    "presence-text": text(json.dumps({"command": "join", "identifier": OWN, "presence": "me"})),
}


def _unknown_position(epoch: str, offset: int) -> dict[str, object]:
    return {"streams": {STREAM: {"epoch": epoch, "offset": offset}}}


COMMANDS: dict[str, Case] = {
    "command-missing": command(identifier=OWN),
    "command-unknown": command(command="explode", identifier=OWN),
    "command-unknown-fields": command(command="pong", surprise=[1, {"a": None}]),
    "perform-without-application": command(True, command="message", identifier=OWN, data='{"action":"speak"}'),
    "perform-data-object": command(True, command="message", identifier=OWN, data={"action": "speak"}),
    "unsubscribe-not-subscribed": command(command="unsubscribe", identifier=ELSEWHERE),
    "whisper-not-subscribed": command(command="whisper", identifier=ELSEWHERE, data={"typing": True}),
    "history-not-subscribed": command(command="history", identifier=ELSEWHERE, history={"since": 1}),
    "history-other-epoch": command(True, command="history", identifier=OWN, history=_unknown_position("none", 1)),
    "presence-not-subscribed": command(command="presence", identifier=ELSEWHERE),
    "presence-options-number": command(True, command="presence", identifier=OWN, data=7),
    "join-not-subscribed": command(command="join", identifier=ELSEWHERE, presence={"id": "1"}),
    "join-without-member": command(True, command="join", identifier=OWN),
    "join-without-id": command(True, command="join", identifier=OWN, presence={"info": {"name": "nobody"}}),
    "join-info-too-large": command(True, command="join", identifier=OWN, presence={"id": "1", "info": "." * 5000}),
    "leave-not-joined": command(True, command="leave", identifier=OWN, presence={"id": "1"}),
    "subscribe-without-identifier": command(command="subscribe"),
    "subscribe-identifier-not-json": command(command="subscribe", identifier="ChatChannel"),
    "subscribe-identifier-array": command(command="subscribe", identifier="[]"),
    "subscribe-identifier-nested-too-deep": command(command="subscribe", identifier="[" * DEPTH + "]" * DEPTH),
    "subscribe-identifier-enormous": command(command="subscribe", identifier=json.dumps({"channel": "." * 60_000})),
    "subscribe-unknown-channel": command(command="subscribe", identifier='{"channel":"ChatChannel"}'),
    "subscribe-without-stream": command(command="subscribe", identifier='{"channel":"$pubsub"}'),
    "subscribe-stream-empty": command(command="subscribe", identifier=identifier("")),
    "subscribe-stream-number": command(command="subscribe", identifier='{"channel":"$pubsub","stream_name":1}'),
    "subscribe-stream-too-long": command(command="subscribe", identifier=identifier("." * 513)),
    "subscribe-signature-wrong": command(
        command="subscribe", identifier='{"channel":"$pubsub","signed_stream_name":"IngiCg==--00"}'
    ),
}
