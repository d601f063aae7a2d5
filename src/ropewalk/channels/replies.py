"""What an action says to its caller: what it returned, or that it failed.

A caller may name its call, with `$reply_to` in the data of the action; the reply has the same name. A call that has none is
answered too, unless the action returned None.
"""

from typing import Any

from msgspec.structs import replace

from ropewalk.channels.errors import ActionError, BadCall, Reject
from ropewalk.channels.texts import json_bytes, json_object
from ropewalk.model.application import Reply
from ropewalk.model.errors import ServerError, Unavailable

NAME = "$reply_to"
NOBODY = b"null"
LONGEST_NAME = 128

UNNAMED = "receive"
"""The action for data that names none."""


def called(data: dict[str, Any]) -> Reply:
    """The reply to this data, before there is anything to say. Takes the call's name out of it. Raises BadCall."""
    to = _name(data)
    action = data.get("action", UNNAMED)
    if not isinstance(action, str):
        raise BadCall("the name of its action is no string", "bad_data")
    return Reply(action, to)


def _name(data: dict[str, Any]) -> bytes:
    """As JSON. Null is no name: a caller that gives it could not tell the reply from one to a call without a name."""
    if NAME not in data:
        return NOBODY
    match data.pop(NAME):
        case bool():
            pass
        case str() | int() as name if len(str(name)) <= LONGEST_NAME:
            return json_bytes(name, NAME)
    raise BadCall(f"{NAME} is neither a whole number nor a string, of at most {LONGEST_NAME} characters", "bad_data")


def returned(reply: Reply, value: object) -> Reply | None:
    """None where nobody asked and there is nothing to say. Raises TypeError for what cannot be written as JSON."""
    if value is None and reply.to == NOBODY:
        return None
    return replace(reply, result=json_bytes(value, f"what {reply.action} returned"))


def rejected(reply: Reply, no: Reject) -> Reply:
    if isinstance(no, ActionError):
        return replace(reply, code=no.code, text=no.reason)
    return replace(reply, code="rejected")


def failed(text: str, error: ServerError) -> Reply:
    """The reply to data whose action failed, or could not be called. It has the name of the call, if that can be read."""
    data = json_object(text) or {}
    action = data.get("action", UNNAMED)
    try:
        to = _name(data)
    except BadCall:
        to = NOBODY
    return Reply(action if isinstance(action, str) else str(action)[:LONGEST_NAME], to, code=_code(error))


def _code(error: ServerError) -> str:
    match error:
        case BadCall():
            return error.code
        case Unavailable():
            return "unavailable"
        case _:
            return "failed"
