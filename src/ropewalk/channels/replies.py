"""What a handler requests, collected until it returns, and the replies of actions to their callers.

A caller may give its call an id, `$reply_to` in the data of the action; the reply carries the same id. A call without an id
gets a reply too, unless the action returned None.
"""

from dataclasses import dataclass, field
from typing import Any, Self

from msgspec.structs import replace

from ropewalk.channels.handlers import ActionError, BadCall, Reject
from ropewalk.channels.values import json_bytes, json_object, json_text
from ropewalk.model.application import MEMBER_KEY, PRESENCE_KEY, SENDER_KEY, WHISPER_KEY, PresenceUpdate, Reply, State
from ropewalk.model.errors import ServerError, Unavailable
from ropewalk.model.messages import Publication
from ropewalk.model.presence import Member

COMPANION_KEYS = {WHISPER_KEY: SENDER_KEY, PRESENCE_KEY: MEMBER_KEY}
"""Keys that are removed together."""


@dataclass(slots=True)
class Effects:
    """The requests of one handler.

    Args:
        kept: the subscription's state before the call.
        fixed_in: the handler's name, if streams and presence cannot change in it; else "".
        over: whether the handler has returned.
        own: changes of the server's keys in the subscription's state.
    """

    kept: State
    fixed_in: str = ""
    over: bool = False
    transmissions: list[str] = field(default_factory=list)
    streams: list[str] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)
    stop_all: bool = False
    own: State = field(default_factory=dict)
    presence_update: PresenceUpdate | None = None
    publications: list[Publication] = field(default_factory=list)
    disconnect: bool = False

    def during(self, method: str) -> Self:
        """Returns itself. Raises RuntimeError after the handler has returned, when its requests have no effect."""
        if self.over:
            raise RuntimeError(
                f"{method} was called after its handler returned: from tasks and threads use app.publish or app.publish_sync"
            )
        return self

    def during_streaming(self, method: str) -> Self:
        """As `during`, also for handlers in which streams and presence cannot change."""
        if self.fixed_in:
            raise RuntimeError(f"{method} cannot be used in {self.fixed_in}: call it in subscribed or in an action")
        return self.during(method)

    def stream_from(self, stream: str) -> None:
        if stream not in self.streams:
            self.streams.append(stream)

    def allow_whispers(self, stream: str, sender: str) -> None:
        """`sender`: the id that others see; "" for an anonymous client."""
        self.own[WHISPER_KEY] = stream
        self.own[SENDER_KEY] = json_text(sender or None, "the sender of whispers")

    def allow_presence(self, stream: str, member: str) -> None:
        """`member`: the id under which the client is present from now on; "" lets the client choose one and join itself."""
        if self._current(PRESENCE_KEY) == stream and self._current(MEMBER_KEY) == member:
            return
        self.own[PRESENCE_KEY] = stream
        if member or self._current(MEMBER_KEY):
            self.own[MEMBER_KEY] = member
        self.presence_update = PresenceUpdate(True, Member(member)) if member else None

    def join_presence(self, member: Member) -> None:
        self.own[MEMBER_KEY] = member.id
        self.presence_update = PresenceUpdate(True, member)

    def stop_stream(self, stream: str) -> None:
        if stream in self.streams:
            self.streams.remove(stream)
        if stream not in self.stopped:
            self.stopped.append(stream)
        self._remove(*(key for key in (WHISPER_KEY, PRESENCE_KEY) if self._current(key) == stream))

    def stop_all_streams(self) -> None:
        self.streams.clear()
        self.stopped.clear()
        self.stop_all = True
        self._remove(WHISPER_KEY, PRESENCE_KEY)

    def presence_stream(self) -> str:
        """ "" if the subscription has no presence set."""
        return self._current(PRESENCE_KEY)

    def _remove(self, *keys: str) -> None:
        for key in keys:
            for each in (key, COMPANION_KEYS[key]):
                if self._current(each):
                    self.own[each] = ""
            if key == PRESENCE_KEY:
                self.presence_update = None

    def _current(self, key: str) -> str:
        return self.own.get(key, self.kept.get(key, ""))


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
