"""Decodes messages of a cable server to typed records: the receiving half of the cable protocol in JSON.

Fields that only some servers send have defaults, so that messages of every server of the extended protocol can be decoded.
"""

import re

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import replace

from ropewalk.model.errors import MalformedFrame
from ropewalk.model.messages import Position
from ropewalk.model.nesting import MAX_DEPTH, TOO_DEEP, is_too_deep
from ropewalk.model.presence import Member


class Welcome(Struct, frozen=True):
    """The session begins. `restored_ids`: identifiers that need no new subscribe; empty for a new session."""

    sid: str = ""
    restored: bool = False
    restored_ids: tuple[str, ...] = ()


class Goodbye(Struct, frozen=True):
    """The server ends the connection. `reconnect`: the client may reconnect, after `reconnect_in` milliseconds."""

    reason: str = ""
    reconnect: bool = True
    reconnect_in: int | None = None


class ServerPing(Struct, frozen=True):
    """`timestamp`: the server's clock in UNIX seconds; 0 without one."""

    timestamp: float = 0.0


class ServerPong(Struct, frozen=True):
    pass


class SubscriptionConfirmed(Struct, frozen=True):
    """`tips`: where live delivery begins, from servers that send it."""

    identifier: str
    tips: dict[str, Position] = {}


class SubscriptionRefused(Struct, frozen=True):
    """`reason`: text from servers over TCP."""

    identifier: str
    reason: str = ""


class HistoryConfirmed(Struct, frozen=True):
    identifier: str
    tips: dict[str, Position] = {}


class StreamGap(Struct, frozen=True):
    """Why one stream's history does not join up. Without `epoch` it gives no position: keep the one that you have."""

    reason: str = ""
    epoch: str = ""
    oldest: int = 0
    tip: int = 0


class HistoryRejected(Struct, frozen=True):
    """`streams` is empty when the server gives no details."""

    identifier: str
    reason: str = ""
    streams: dict[str, StreamGap] = {}


class PresenceChanged(Struct, frozen=True):
    identifier: str
    joined: bool
    member: Member


class PresenceListed(Struct, frozen=True):
    """`next`: the id after which the list goes on, "" if this is all."""

    identifier: str
    total: int
    members: tuple[Member, ...] = ()
    next: str = ""


class PresenceFailed(Struct, frozen=True):
    identifier: str


class Data(Struct, frozen=True):
    """A message of a stream. Without a position (a whisper, a transient publication) the offset is 0."""

    identifier: str
    payload: bytes
    stream: str = ""
    epoch: str = ""
    offset: int = 0
    type: str = ""


class UnknownMessage(Struct, frozen=True):
    """A kind of message this client does not know; newer servers may send some."""

    type: str


ServerMessage = (
    Welcome
    | Goodbye
    | ServerPing
    | ServerPong
    | SubscriptionConfirmed
    | SubscriptionRefused
    | HistoryConfirmed
    | HistoryRejected
    | PresenceChanged
    | PresenceListed
    | PresenceFailed
    | Data
    | UnknownMessage
)


class _Frame(Struct):
    """Every field a message may have; which of them count depends on `type`."""

    type: str = ""
    identifier: str = ""
    message: Raw | UnsetType = UNSET
    reason: str = ""
    reconnect: bool = True
    reconnect_in: int | None = None
    stream_id: str = ""
    epoch: str = ""
    offset: int = 0
    sid: str = ""
    restored: bool = False
    restored_ids: tuple[str, ...] = ()
    streams: dict[str, StreamGap] = {}


class _MemberRecord(Struct):
    id: str
    info: Raw = Raw(b"")


class _PresenceBody(Struct):
    type: str
    id: str = ""
    info: Raw = Raw(b"")
    total: int = 0
    records: tuple[_MemberRecord, ...] = ()
    next: str = ""


_frame = msgspec.json.Decoder(_Frame)
_presence_body = msgspec.json.Decoder(_PresenceBody)
_timestamp = msgspec.json.Decoder(float)

MILLISECONDS_FROM = 1e11
"""A timestamp above this cannot be seconds (it would be the year 5138), so it is in milliseconds."""


_AROUND = 8
"""Nesting levels of the protocol, with a reserve for other servers."""

_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.?)*+"?|[\[{\]}]', re.DOTALL)
_COLON = re.compile(rb"[ \t\r\n]*:[ \t\r\n]*")


def decode(data: bytes | str) -> ServerMessage:
    """Raises MalformedFrame for an invalid message."""
    try:
        if is_too_deep(data, MAX_DEPTH + _AROUND):
            return _deep(data.encode() if isinstance(data, str) else data)
        return _typed(_frame.decode(data))
    except (msgspec.DecodeError, UnicodeError) as error:
        raise MalformedFrame(f"the server sent an invalid cable message: {error}") from error


def _deep(data: bytes) -> ServerMessage:
    """Decode a message nested too deeply: a message of a stream keeps its position; any other is an error."""
    frame, payload = _without_message(data)
    message = None if is_too_deep(frame, MAX_DEPTH + _AROUND) else _typed(_frame.decode(frame))
    if not isinstance(message, Data):
        raise MalformedFrame(f"the server sent a cable message that is {TOO_DEEP}")
    return replace(message, payload=payload)


def _without_message(data: bytes) -> tuple[bytes, bytes]:
    """A frame with null in the place of its message, and the message."""
    depth, start = 0, -1
    for token in _TOKEN.finditer(data):
        match token[0]:
            case b"[" | b"{":
                depth += 1
            case b"]" | b"}":
                depth -= 1
                if depth == 1 and start >= 0:
                    return data[:start] + b"null" + data[token.end() :], data[start : token.end()]
            case b'"message"' if depth == 1 and (colon := _COLON.match(data, token.end())):
                start = colon.end() if data[colon.end() : colon.end() + 1] in (b"[", b"{") else -1
    return data, b""


def _typed(frame: _Frame) -> ServerMessage:
    match frame.type:
        case "welcome":
            return Welcome(frame.sid, frame.restored, frame.restored_ids)
        case "disconnect":
            return Goodbye(frame.reason, frame.reconnect, frame.reconnect_in)
        case "ping":
            return ServerPing(_seconds(frame.message))
        case "pong":
            return ServerPong()
        case _ if frame.identifier:
            return _about(frame)
        case _:
            return UnknownMessage(frame.type)


def _about(frame: _Frame) -> ServerMessage:
    match frame.type:
        case "confirm_subscription":
            return SubscriptionConfirmed(frame.identifier, _tips(frame))
        case "reject_subscription":
            return SubscriptionRefused(frame.identifier)
        case "confirm_history":
            return HistoryConfirmed(frame.identifier, _tips(frame))
        case "reject_history":
            return HistoryRejected(frame.identifier, frame.reason, frame.streams)
        case "presence" if frame.message is not UNSET:
            return _presence(frame.identifier, _presence_body.decode(frame.message))
        case _ if frame.message is not UNSET:
            payload = bytes(frame.message)
            return Data(frame.identifier, payload, frame.stream_id, frame.epoch, frame.offset, frame.type)
        case _:
            return UnknownMessage(frame.type)


def _tips(frame: _Frame) -> dict[str, Position]:
    return {stream: Position(state.epoch, state.tip) for stream, state in frame.streams.items()}


def _presence(identifier: str, body: _PresenceBody) -> ServerMessage:
    match body.type:
        case "join" | "leave":
            return PresenceChanged(identifier, body.type == "join", Member(body.id, bytes(body.info)))
        case "info":
            members = tuple(Member(record.id, bytes(record.info)) for record in body.records)
            return PresenceListed(identifier, body.total, members, body.next)
        case "error":
            return PresenceFailed(identifier)
        case _:
            return UnknownMessage("presence")


def _seconds(message: Raw | UnsetType) -> float:
    if message is UNSET:
        return 0.0
    timestamp = _timestamp.decode(message)
    return timestamp / 1000 if timestamp > MILLISECONDS_FROM else timestamp
