"""Publications of the server: presence events and whispers.

Clients of every protocol get the same payload. Keys that begin with `$` are reserved for the server.
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
    """The message for a join or a leave."""
    member = event.member
    info = {"info": Raw(member.info)} if member.info and event.type == "join" else {}
    payload = encode({"type": event.type, **info, "id": member.id})
    return Publication(event.stream, payload, broadcast_type=PRESENCE_TYPE, transient=True)


def whisper_publication(stream: str, payload: bytes, sid: str, sender: str) -> Publication:
    """The client's payload. If the application has identified the client, it is marked as a whisper of that `sender`, JSON
    text; other text counts as a string. The mark is inside the message, because libraries for Action Cable pass nothing else
    to their users."""
    if not sender:
        return Publication(stream, payload, exclude_socket=sid, transient=True)
    marked = encode({WHISPER_KEY: Raw(payload), "from": _decode(sender)})
    return Publication(stream, marked, exclude_socket=sid, broadcast_type=WHISPER, transient=True)


def _decode(text: str) -> object:
    try:
        return msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return text
