"""Action Cable's JSON, base and extended: frames to commands, records to JSON text. Framing belongs to the codecs.

Payloads pass through as raw text. Keys are in the same order as those of the reference server.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Raw, Struct
from msgspec.json import encode
from msgspec.structs import replace

from ropewalk.model import commands
from ropewalk.model.closing import Closing
from ropewalk.model.errors import MalformedFrame
from ropewalk.model.history import Gap, HistoryRequest, Tip
from ropewalk.model.messages import Position, Registered
from ropewalk.model.nesting import MAX_DEPTH, TOO_DEEP, is_too_deep
from ropewalk.model.presence import Member, PresencePage
from ropewalk.model.refusals import Refusal
from ropewalk.protocol.json_errors import why_no_json

IdentifierReply = Literal["confirm_subscription", "reject_subscription", "confirm_history"]

# --- client to server ------------------------------------------------------------------------------------------------


class _WirePosition(Struct):
    epoch: str
    offset: Annotated[int, Meta(ge=0, le=2**63 - 1)]


class _WireHistory(Struct):
    since: float | None = None
    streams: dict[str, _WirePosition] | None = None


class _WireMember(Struct):
    id: str = ""
    info: Raw = Raw(b"")


class _WireCommand(Struct):
    command: str = ""
    type: str = ""
    identifier: str = ""
    data: Raw = Raw(b"")
    history: _WireHistory | None = None
    presence: _WireMember | None = None


class _PresenceOptions(Struct):
    return_records: bool = True
    after: str = ""


_AROUND = 2  # nesting levels of the protocol: the command, and the member in it

_decode_command = msgspec.json.Decoder(_WireCommand).decode
_decode_text = msgspec.json.Decoder(str).decode
_decode_options = msgspec.json.Decoder(_PresenceOptions | None).decode


def decode(frame: bytes) -> commands.Command:
    """One frame of a client. Raises MalformedFrame: 1007 for invalid JSON, 1003 for JSON of another shape."""
    if is_too_deep(frame, MAX_DEPTH + _AROUND):
        raise _nested("frame")
    try:
        # Raw fields are checked for syntax but not for UTF-8, so the whole frame is decoded first.
        wire = _decode_command(frame.decode())
    except UnicodeDecodeError:
        raise MalformedFrame("frame is not UTF-8") from None
    except msgspec.ValidationError as error:
        raise MalformedFrame(f"not a command: {error}", 1003) from None
    except msgspec.DecodeError as error:
        raise MalformedFrame(f"frame is not JSON: {why_no_json(frame, error)}") from None
    # The older form {"type":"history", …} is accepted besides {"command":"history", …}.
    name = wire.command or ("history" if wire.type == "history" else "")
    build = _BUILDERS.get(name)
    return build(wire) if build else commands.Unusable(f"unknown command {name[:40]!r}")


def _nested(what: str) -> MalformedFrame:
    return MalformedFrame(f"{what} is {TOO_DEEP}", refusal=Refusal.NESTING)


def _history(wire: _WireHistory | None) -> HistoryRequest | None:
    """None without a positive `since` and without a `streams` object."""
    if wire is None or ((wire.since is None or wire.since <= 0) and wire.streams is None):
        return None
    positions = {name: Position(item.epoch, item.offset) for name, item in (wire.streams or {}).items()}
    return HistoryRequest(wire.since if wire.since and wire.since > 0 else None, positions)


def _member(wire: _WireMember | None) -> Member | None:
    if wire is None or not wire.id:
        return None
    info = bytes(wire.info)
    if is_too_deep(info):
        raise _nested("presence info")
    return Member(wire.id, b"" if info == b"null" else info)


def _perform(wire: _WireCommand) -> commands.Command:
    try:
        return commands.Perform(wire.identifier, _decode_text(wire.data))
    except msgspec.DecodeError:
        return commands.Unusable("data of a message must be a string")


def _presence(wire: _WireCommand) -> commands.Command:
    try:
        options = (_decode_options(wire.data) if wire.data else None) or _PresenceOptions()
    except msgspec.DecodeError:
        return commands.Unusable("data of a presence request must be an object of options")
    return commands.Presence(wire.identifier, options.return_records, options.after)


def _join(wire: _WireCommand) -> commands.Command:
    member = _member(wire.presence)
    return commands.Join(wire.identifier, member) if member else commands.Unusable("join needs a presence object with an id")


def _whisper(wire: _WireCommand) -> commands.Command:
    payload = bytes(wire.data) or b"null"
    if is_too_deep(payload):
        raise _nested("whisper")
    return commands.Whisper(wire.identifier, payload)


_BUILDERS: dict[str, Callable[[_WireCommand], commands.Command]] = {
    "subscribe": lambda wire: commands.Subscribe(wire.identifier, _history(wire.history), _member(wire.presence)),
    "unsubscribe": lambda wire: commands.Unsubscribe(wire.identifier),
    "message": _perform,
    "history": lambda wire: commands.History(wire.identifier, _history(wire.history) or HistoryRequest()),
    "whisper": _whisper,
    "presence": _presence,
    "join": _join,
    "leave": lambda wire: commands.Leave(wire.identifier),
    "ping": lambda wire: commands.Ping(),
    "pong": lambda wire: commands.Pong(),
}

RECORD_FRAME = len('{"info":,"id":},')  # bytes of a member's record beside the id and the info

# --- server to client ------------------------------------------------------------------------------------------------


def message_head(identifier: str) -> bytes:
    """The beginning of every data message of one identifier."""
    return b'"identifier":' + encode(identifier) + b',"message":'


def message_json(head: bytes, message: Registered) -> bytes:
    """A data message. The caller caches `head`, so encoding costs one join."""
    start = b'{"type":' + encode(message.broadcast_type) + b"," + head if message.broadcast_type else b"{" + head
    if not message.offset:
        return b"%b%b}" % (start, message.payload)
    return b'%b%b,"stream_id":%b,"epoch":%b,"offset":%d}' % (
        start,
        message.payload,
        encode(message.stream),
        encode(message.epoch),
        message.offset,
    )


def welcome_json(sid: str, restored_ids: Sequence[str] | None) -> bytes:
    """A restored session always has the list: clients take its absence for "everything was restored"."""
    if restored_ids is None:
        return encode({"type": "welcome", "sid": sid})
    return encode({"type": "welcome", "sid": sid, "restored": True, "restored_ids": restored_ids})


def about_json(kind: IdentifierReply, identifier: str, tips: Sequence[Tip] = ()) -> bytes:
    """`tips` become `streams`, an extension for clients that request it."""
    reply: dict[str, object] = {"type": kind, "identifier": identifier}
    if tips:
        reply["streams"] = {stream: {"epoch": tip.epoch, "tip": tip.offset} for stream, tip in tips}
    return encode(reply)


def confirm_trimmed_json(identifier: str, gaps: Sequence[Gap]) -> bytes:
    """A confirmation with the missing ranges. Of two gaps of one stream, it has the last."""
    return _with_gaps({"type": "confirm_history", "identifier": identifier}, gaps)


def reject_history_json(identifier: str, gaps: Sequence[Gap]) -> bytes:
    return _with_gaps({"type": "reject_history", "identifier": identifier}, gaps)


def _with_gaps(reply: dict[str, object], gaps: Sequence[Gap]) -> bytes:
    """`reason` and `streams` are extensions that older clients ignore."""
    if gaps:
        reply["reason"] = gaps[0].reason
        reply["streams"] = {
            gap.stream: {"reason": gap.reason, "epoch": gap.epoch, "oldest": gap.oldest, "tip": gap.tip} for gap in gaps
        }
    return encode(reply)


def presence_json(identifier: str, page: PresencePage | None, records: bool) -> bytes:
    """`next` is an extension, present if not all members fit: the id after which the next page begins."""
    message: dict[str, object] = {"type": "error", "total": 0}
    if page is not None:
        message = {"type": "info", "total": page.total}
        if records and page.members:
            message["records"] = [_member_record(member) for member in page.members]
            if page.next_id is not None:
                message["next"] = page.next_id
    return encode({"type": "presence", "identifier": identifier, "message": message})


def fitting(page: PresencePage, room: int) -> PresencePage:
    """As many members as fit into `room` bytes, at least one; the rest is for the next page."""
    for count, member in enumerate(page.members):
        room -= len(encode(member.id)) + len(member.info) + RECORD_FRAME
        if room < 0 and count:
            return replace(page, members=page.members[:count], next_id=page.members[count - 1].id)
    return page


def _member_record(member: Member) -> dict[str, object]:
    return {"info": Raw(member.info), "id": member.id} if member.info else {"id": member.id}


def ping_json(timestamp: int) -> bytes:
    return b'{"type":"ping","message":%d}' % timestamp


def pong_json() -> bytes:
    return b'{"type":"pong"}'


def disconnect_json(closing: Closing) -> bytes:
    fields = {"type": "disconnect", "reason": closing.reason, "reconnect": closing.reconnect}
    return encode(fields if closing.reconnect_in is None else {**fields, "reconnect_in": closing.reconnect_in})
