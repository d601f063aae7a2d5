"""Server frames of RFC 6455, and the codec of the cable: Action Cable JSON in text frames.

Frames are built here, not by the transport, so that one frame serves all connections and the frames of a tick are joined into
one write.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache

from ropewalk.model.closing import Closing
from ropewalk.model.commands import Command
from ropewalk.model.history import Gap, HistoryPart, Tip
from ropewalk.model.messages import Deliverable, Registered, expand_runs
from ropewalk.model.presence import PresencePage
from ropewalk.model.sessions import NotGranted
from ropewalk.protocol import cable_json
from ropewalk.protocol.cable_json import IdentifierReply, about_json, message_json
from ropewalk.protocol.transmissions import TransmissionCodec

PING_FRAME = b"\x89\x00"

_OPCODES = {0x1: "", 0x8: "(close)", 0x9: "(ping)", 0xA: "(pong)"}  # of the frames a server sends, with what the log calls them


def text_frame(payload: bytes) -> bytes:
    """One unmasked, final text frame."""
    size = len(payload)
    if size < 126:
        return b"\x81" + size.to_bytes(1) + payload
    if size < 65536:
        return b"\x81\x7e" + size.to_bytes(2) + payload
    return b"\x81\x7f" + size.to_bytes(8) + payload


def pong_frame(payload: bytes) -> bytes:
    """The answer to a ping, which carried `payload`."""
    return b"\x8a" + len(payload).to_bytes(1) + payload


def close_frame(code: int, text: str) -> bytes:
    """A control frame has at most 125 bytes: two for the code, the rest for text, truncated between characters."""
    reason = text.encode()[:123].decode(errors="ignore").encode()
    return b"\x88" + (len(reason) + 2).to_bytes(1) + code.to_bytes(2) + reason


def readable(data: bytes) -> str:
    """Frames of a server as text for the log, without their heads. Other bytes are shown unchanged."""
    shown: list[str] = []
    while data and data[0] & 0x80 and data[0] & 0x0F in _OPCODES:  # never the first byte of text
        size, start = data[1], 2
        if size > 125:
            start = 4 if size == 126 else 10
            size = int.from_bytes(data[2:start])
        shown.append(_OPCODES[data[0] & 0x0F] + data[start : start + size].decode(errors="replace"))
        data = data[start + size :]
    return "\n".join([*shown, data.decode(errors="replace")] if data else shown)


class CableMessages:
    """The `MessageCodec` of the cable: one for all sessions, since the options of a session change no message."""

    def head(self, identifier: str) -> bytes:
        return cable_json.message_head(identifier)

    def message(self, head: bytes, message: Registered) -> bytes:
        return text_frame(message_json(head, message))

    def batch(self, head: bytes, messages: Sequence[Deliverable]) -> bytes:
        message = self.message
        if len(messages) == 1 and type(messages[0]) is Registered:
            return message(head, messages[0])
        return b"".join([message(head, each) for each in expand_runs(messages)])

    def reject_history(self, identifier: str, gaps: Sequence[Gap]) -> bytes:
        return text_frame(cable_json.reject_history_json(identifier, gaps))


MESSAGES = CableMessages()

SHORT_IDENTIFIER, CONFIRMATIONS = 512, 512
"""How long an identifier may be whose confirmations are kept for the next who subscribes to the same, and how many are."""


def _confirmed(kind: IdentifierReply, identifier: str) -> bytes:
    return text_frame(about_json(kind, identifier))


_confirmation = lru_cache(maxsize=CONFIRMATIONS)(_confirmed)


class CableCodec(TransmissionCodec):
    """The `SessionCodec` of the cable. Base and extended sessions share it: what differs between them is what they ask for.

    `native_pings` adds a WebSocket ping to each of ours, for clients whose library answers only those. `reports_positions` adds
    the positions of streams to confirmations, for clients that ask for them.
    """

    messages = MESSAGES
    one_way = False
    confirms_with_tips = False
    answers_repeats = False

    def __init__(self, native_pings: bool = False, reports_positions: bool = False) -> None:
        self.native_pings = native_pings
        self.meter = None
        self.reports_positions = self.shows_tips = reports_positions
        self._after_ping = PING_FRAME if native_pings else b""

    def decode(self, frame: bytes) -> Command:
        return cable_json.decode(frame)

    def welcome(self, sid: str, restored_ids: Sequence[str] | None) -> bytes:
        return text_frame(cable_json.welcome_json(sid, restored_ids))

    def confirm_subscription(self, identifier: str, tips: Sequence[Tip] = ()) -> bytes:
        return self._confirm("confirm_subscription", identifier, tips)

    def reject_subscription(self, identifier: str, why: NotGranted | None = None) -> bytes:
        return text_frame(cable_json.about_json("reject_subscription", identifier))

    def confirm_history(self, identifier: str, tips: Sequence[Tip] = ()) -> bytes:
        return self._confirm("confirm_history", identifier, tips)

    def _confirm(self, kind: IdentifierReply, identifier: str, tips: Sequence[Tip]) -> bytes:
        if tips and self.shows_tips:
            return text_frame(about_json(kind, identifier, tips))
        return _confirmation(kind, identifier) if len(identifier) <= SHORT_IDENTIFIER else _confirmed(kind, identifier)

    def confirm_trimmed(self, identifier: str, gaps: Sequence[Gap]) -> bytes:
        return text_frame(cable_json.confirm_trimmed_json(identifier, gaps))

    def history_part(self, part: HistoryPart | NotGranted) -> Iterator[bytes]:
        return iter(())

    def presence(self, identifier: str, page: PresencePage | None, records: bool) -> bytes:
        return text_frame(cable_json.presence_json(identifier, page, records))

    def fitting(self, page: PresencePage, room: int) -> PresencePage:
        return cable_json.fitting(page, room)

    def transmission(self, text: str) -> bytes:
        return text_frame(text.encode())

    def ping(self, timestamp: int) -> bytes:
        return text_frame(cable_json.ping_json(timestamp)) + self._after_ping

    def pong(self) -> bytes:
        return text_frame(cable_json.pong_json())

    def disconnect(self, closing: Closing) -> bytes:
        return text_frame(cable_json.disconnect_json(closing)) if closing.reason else b""

    def readable(self, data: bytes) -> str:
        return readable(data)
