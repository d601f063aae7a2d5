"""Publications that the server makes by itself: presence events and whispers.

They are messages like any other: clients of every protocol get the same payload. Keys that begin with `$` are the server's own.
"""

import msgspec
from msgspec import Raw
from msgspec.json import encode

from ropewalk.model.messages import PRESENCE_TYPE, Publication
from ropewalk.model.presence import PresenceEvent

WHISPER = "whisper"
"""The type of the message, for clients that read it."""

WHISPER_KEY = "$whisper"


def presence_publication(event: PresenceEvent) -> Publication:
    """How others hear of a join or a leave."""
    member = event.member
    info = {"info": Raw(member.info)} if member.info and event.type == "join" else {}
    payload = encode({"type": event.type, **info, "id": member.id})
    return Publication(event.stream, payload, broadcast_type=PRESENCE_TYPE, transient=True)


def whisper_publication(stream: str, payload: bytes, sid: str, sender: str) -> Publication:
    """As the client said it. Where the application has said who the client is, marked as a whisper of that `sender`: JSON
    text; what is no JSON counts as a string. The mark is inside the message, because libraries of Action Cable hand that to
    their users and nothing beside it."""
    if not sender:
        return Publication(stream, payload, exclude_socket=sid, transient=True)
    marked = encode({WHISPER_KEY: Raw(payload), "from": _value(sender)})
    return Publication(stream, marked, exclude_socket=sid, broadcast_type=WHISPER, transient=True)


def _value(text: str) -> object:
    try:
        return msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return text
