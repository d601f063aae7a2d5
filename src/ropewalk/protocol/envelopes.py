"""What the server wraps a message in when it has to say what the message is: the reply to an action, or a whisper.

Libraries of Action Cable hand `message` to their users and nothing beside it, so that the mark is inside. Keys that begin with
`$` are the server's own.
"""

import msgspec
from msgspec import Raw
from msgspec.json import encode

from ropewalk.model.application import Reply

REPLY, WHISPER = "reply", "whisper"
"""The `type` of the frame, for clients that read it."""

REPLY_TO_KEY = "$reply_to"
WHISPER_KEY = "$whisper"


def reply_json(identifier: str, reply: Reply) -> str:
    """The text of the frame for the one who called the action."""
    message: dict[str, object] = {REPLY_TO_KEY: Raw(reply.to), "action": reply.action}
    if reply.code:
        message["error"] = {"code": reply.code, **({"message": reply.text} if reply.text else {})}
    else:
        message["result"] = Raw(reply.result)
    return encode({"type": REPLY, "identifier": identifier, "message": message}).decode()


def whisper_json(payload: bytes, sender: str) -> bytes:
    """The payload that the others get. `sender` is JSON text; what is no JSON counts as a string."""
    return encode({WHISPER_KEY: Raw(payload), "from": _value(sender)})


def _value(text: str) -> object:
    try:
        return msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return text
