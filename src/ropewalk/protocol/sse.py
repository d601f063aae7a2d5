"""Server-sent events: records to the text of events.

Whatever a name or a payload holds, it cannot end its line: an event is never more than the one that was meant.
"""

import re
from collections.abc import Sequence
from urllib.parse import quote

import msgspec

from ropewalk.model.closing import Closing
from ropewalk.model.commands import Command
from ropewalk.model.history import Gap
from ropewalk.model.messages import Registered
from ropewalk.model.presence import PresencePage
from ropewalk.protocol import cable_json, transmissions
from ropewalk.protocol.codec import IdentifierReply, Tip

NEVER = 31_536_000_000
"""Milliseconds, a year: the `retry` by which an EventSource is told not to come back."""

_LINE_END = re.compile(rb"\r\n|\r|\n")
_ID_SAFE = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) != "%")


class SseCodec:
    """`unwrap` sends data messages as their bare message (GET); `raw` leaves out every message that has a type."""

    tells_positions = False

    def __init__(self, unwrap: bool, raw: bool) -> None:
        self._unwrap = unwrap
        self._raw = raw

    def decode(self, frame: bytes) -> Command:
        return cable_json.decode(frame)

    def head(self, identifier: str) -> bytes:
        return cable_json.message_head(identifier)

    def message(self, head: bytes, message: Registered) -> bytes:
        if message.broadcast_type:
            return self._typed(message.broadcast_type, cable_json.message_json(head, message), event_id(message))
        data = _bare(message.payload) if self._unwrap else cable_json.message_json(head, message)
        return _event(b"", data, event_id(message))

    def welcome(self, sid: str, restored_ids: Sequence[str] | None) -> bytes:
        return self._typed("welcome", cable_json.welcome_json(sid, restored_ids))

    def about(self, kind: IdentifierReply, identifier: str, tips: Sequence[Tip] = ()) -> bytes:
        return self._typed(kind, cable_json.about_json(kind, identifier))

    def confirm_trimmed(self, identifier: str, gaps: Sequence[Gap]) -> bytes:
        return self._typed("confirm_history", cable_json.confirm_trimmed_json(identifier, gaps))

    def reject_history(self, identifier: str, gaps: Sequence[Gap]) -> bytes:
        return self._typed("reject_history", cable_json.reject_history_json(identifier, gaps))

    def presence(self, identifier: str, page: PresencePage | None, records: bool) -> bytes:
        return self._typed("presence", cable_json.presence_json(identifier, page, records))

    def transmission(self, text: str) -> bytes:
        said = transmissions.read(text)
        if said.type:
            return self._typed(said.type, text.encode())
        return _event(b"", _bare(bytes(said.message)) if self._unwrap and said.message else text.encode(), b"")

    def ping(self, timestamp: int) -> bytes:
        return self._typed("ping", cable_json.ping_json(timestamp))

    def pong(self) -> bytes:
        return self._typed("pong", cable_json.pong_json())

    def disconnect(self, closing: Closing) -> bytes:
        last = b"" if closing.reconnect else b"retry: %d\n" % NEVER
        return self._typed("disconnect", cable_json.disconnect_json(closing), last)

    def _typed(self, kind: str, data: bytes, last: bytes = b"") -> bytes:
        return b"" if self._raw else _event(b"event: %b\n" % _LINE_END.sub(b" ", kind.encode()), data, last)


def event_id(message: Registered) -> bytes:
    """The `id` line of a message with a position, else nothing.

    The stream is percent-encoded where it is not plain ASCII: clients send the id back in a header, which carries no
    line ends and, with many of them, no other letters.
    """
    if not message.offset:
        return b""
    return f"id: {message.offset}/{message.epoch}/{quote(message.stream, safe=_ID_SAFE)}\n".encode()


def _event(start: bytes, data: bytes, last: bytes) -> bytes:
    lines = b"".join(b"data: %b\n" % line for line in _LINE_END.split(data))
    return b"%b%b%b\n" % (start, lines, last)


def _bare(payload: bytes) -> bytes:
    """A JSON string as the text it stands for, anything else as the JSON it is."""
    return msgspec.json.decode(payload, type=str).encode() if payload.startswith(b'"') else payload
