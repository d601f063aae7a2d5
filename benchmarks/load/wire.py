"""The client's side of the wire as bytes: the upgrade, commands in masked frames, and frames cut out of what arrived.

Only what the server really sends is understood: unfragmented text frames below 64 KiB.
"""

import base64
import json
import os
import struct

PROTOCOL = "actioncable-v1-ext-json"

Position = tuple[str, int]
"""Epoch and offset."""


def upgrade_request(host: str, path: str) -> bytes:
    """The key may be the same for all: nothing here depends on the answer to it."""
    key = base64.b64encode(os.urandom(16)).decode()
    lines = (
        f"GET {path} HTTP/1.1",
        f"Host: {host}",
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        f"Sec-WebSocket-Key: {key}",
        f"Sec-WebSocket-Protocol: {PROTOCOL}",
    )
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def identifier(stream: str) -> str:
    return json.dumps({"channel": "$pubsub", "stream_name": stream}, separators=(",", ":"))


def subscribe(stream: str, after: Position | None = None) -> bytes:
    """With a position: and ask for all that follows it."""
    asked = {} if after is None else {"history": _above(stream, after)}
    return _masked({"command": "subscribe", "identifier": identifier(stream), **asked})


def history(stream: str, after: Position) -> bytes:
    """Ask for all that follows a position."""
    return _masked({"command": "history", "identifier": identifier(stream), "history": _above(stream, after)})


def _above(stream: str, position: Position) -> dict[str, object]:
    epoch, offset = position
    return {"streams": {stream: {"epoch": epoch, "offset": offset}}}


def _masked(command: dict[str, object]) -> bytes:
    payload = json.dumps(command, separators=(",", ":")).encode()
    # a mask of zeros is a valid mask and leaves the payload as it is
    if len(payload) < 126:
        return struct.pack("!BB4x", 0x81, 0x80 | len(payload)) + payload
    return struct.pack("!BBH4x", 0x81, 0xFE, len(payload)) + payload


def cut_frames(buffer: bytes) -> tuple[list[bytes], bytes]:
    """The payloads of the whole frames in `buffer`, and the rest of it."""
    payloads: list[bytes] = []
    start, end = 0, len(buffer)
    while end - start >= 2:
        length, head = buffer[start + 1], 2
        if length == 126:
            if end - start < 4:
                break
            length, head = buffer[start + 2] << 8 | buffer[start + 3], 4
        if end - start < head + length:
            break
        payloads.append(buffer[start + head : start + head + length])
        start += head + length
    return payloads, buffer[start:]


def read_offset(payload: bytes) -> int:
    """The offset of a data message: its last field, so the payload itself is not parsed."""
    return int(payload[payload.rindex(b'"offset":') + 9 : -1])
