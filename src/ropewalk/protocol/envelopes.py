"""The envelope of a reply to an action.

Action Cable libraries pass only `message` to their users, so the mark of a reply is inside it. Keys that begin with `$` are
reserved for the server.
"""

from msgspec import Raw
from msgspec.json import encode

from ropewalk.model.application import Reply

REPLY = "reply"
"""The `type` of the frame, for clients that read it."""

REPLY_TO_KEY = "$reply_to"


def reply_json(identifier: str, reply: Reply) -> str:
    """The text of the frame for the caller of the action."""
    message: dict[str, object] = {REPLY_TO_KEY: Raw(reply.to), "action": reply.action}
    if reply.code:
        message["error"] = {"code": reply.code, **({"message": reply.text} if reply.text else {})}
    else:
        message["result"] = Raw(reply.result)
    return encode({"type": REPLY, "identifier": identifier, "message": message}).decode()
