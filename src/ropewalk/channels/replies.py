"""Replies of actions to their callers: the return value, or an error.

A caller may give its call an id, `$reply_to` in the data of the action; the reply carries the same id. A call without an id
gets a reply too, unless the action returned None.
"""

from typing import Any

from msgspec.structs import replace

from ropewalk.channels.handlers import ActionError, BadCall, Reject
from ropewalk.channels.values import json_bytes, json_object
from ropewalk.model.application import Reply
from ropewalk.model.errors import ServerError, Unavailable

REPLY_TO = "$reply_to"
NO_CALL_ID = b"null"
MAX_NAME_CHARACTERS = 128

DEFAULT_ACTION = "receive"
"""The action for data that names none."""


def new_reply(data: dict[str, Any]) -> Reply:
    """The empty reply to a call. Removes the call's id from its data. Raises BadCall."""
    to = _pop_call_id(data)
    action = data.get("action", DEFAULT_ACTION)
    if not isinstance(action, str):
        raise BadCall("the action's name is not a string", "bad_data")
    return Reply(action, to)


def _pop_call_id(data: dict[str, Any]) -> bytes:
    """Returns JSON. Null is not an id: its reply would look like one to a call without an id."""
    if REPLY_TO not in data:
        return NO_CALL_ID
    match data.pop(REPLY_TO):
        case bool():
            pass
        case str() | int() as call_id if len(str(call_id)) <= MAX_NAME_CHARACTERS:
            return json_bytes(call_id, REPLY_TO)
    raise BadCall(f"{REPLY_TO} must be an integer or a string of at most {MAX_NAME_CHARACTERS} characters", "bad_data")


def result_reply(reply: Reply, value: object) -> Reply | None:
    """Returns None if the call has no id and the value is None. Raises TypeError if the value cannot be written as JSON."""
    if value is None and reply.to == NO_CALL_ID:
        return None
    return replace(reply, result=json_bytes(value, f"the return value of {reply.action}"))


def rejection_reply(reply: Reply, rejection: Reject) -> Reply:
    if isinstance(rejection, ActionError):
        return replace(reply, code=rejection.code, text=rejection.reason)
    return replace(reply, code="rejected")


def failure_reply(text: str, error: ServerError) -> Reply:
    """The reply to a call, from its data, that failed or could not be made. Carries the call's id if it can be read."""
    data = json_object(text) or {}
    action = data.get("action", DEFAULT_ACTION)
    try:
        to = _pop_call_id(data)
    except BadCall:
        to = NO_CALL_ID
    return Reply(action if isinstance(action, str) else str(action)[:MAX_NAME_CHARACTERS], to, code=_error_code(error))


def _error_code(error: ServerError) -> str:
    match error:
        case BadCall():
            return error.code
        case Unavailable():
            return "unavailable"
        case _:
            return "failed"
