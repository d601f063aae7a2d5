"""What the server wraps the reply to an action in.

Libraries of Action Cable hand `message` to their users and nothing beside it, so that the mark is inside. Keys that begin with
`$` are the server's own.
"""

from msgspec import Raw
from msgspec.json import encode

from ropewalk.model.application import Reply

REPLY = "reply"
"""The `type` of the frame, for clients that read it."""

REPLY_TO_KEY = "$reply_to"


def reply_json(identifier: str, reply: Reply) -> str:
    """The text of the frame for the one who called the action."""
    message: dict[str, object] = {REPLY_TO_KEY: Raw(reply.to), "action": reply.action}
    if reply.code:
        message["error"] = {"code": reply.code, **({"message": reply.text} if reply.text else {})}
    else:
        message["result"] = Raw(reply.result)
    return encode({"type": REPLY, "identifier": identifier, "message": message}).decode()
