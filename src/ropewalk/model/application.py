"""Calls from a session to the application behind the server, and the results.

State is a map of text, kept by the session on behalf of the application: one map for the connection and one for each
subscription. Results carry changes: a key with a new value, or with "" to delete it.
"""

from enum import StrEnum

from msgspec import Struct

from ropewalk.model.messages import Publication
from ropewalk.model.presence import Member

State = dict[str, str]

WHISPER_KEY = "$w"
"""In the state of a subscription: the stream that its client may whisper to."""

PRESENCE_KEY = "$p"
"""In the state of a subscription: the stream whose presence set its client may join."""


MEMBER_KEY = "$m"
"""In the state of a subscription: the id under which its client may be present. Without it the client chooses one."""

SENDER_KEY = "$f"
"""In the state of a subscription: who its client is to those it whispers to, as JSON text. With it whispers are marked."""


def merge_state(state: State, changes: State) -> State:
    """The state with the changes applied. Neither argument is modified."""
    return {key: value for key, value in {**state, **changes}.items() if value} if changes else state


class CallContext(Struct, frozen=True):
    """The session that a call belongs to. `headers` are those that the settings forward, in lower case, and `REMOTE_ADDR`.
    `ids` is empty until the client is authenticated."""

    sid: str
    url: str = ""
    headers: dict[str, str] = {}
    ids: str = ""
    state: State = {}


class ConnectResult(Struct, frozen=True):
    """The result of a connect call. `transmissions` are JSON texts for the client; `reason` is for the log."""

    accepted: bool
    ids: str = ""
    transmissions: tuple[str, ...] = ()
    state: State = {}
    reason: str = ""


class Action(StrEnum):
    """What a client asks a channel for. The values are those of the wire."""

    SUBSCRIBE = "subscribe"
    UNSUBSCRIBE = "unsubscribe"
    PERFORM = "message"


class CommandCall(Struct, frozen=True):
    """A command for a channel; `state` is that of the subscription, `data` what an action brings along."""

    context: CallContext
    action: Action
    identifier: str
    state: State = {}
    data: str = ""


class PresenceUpdate(Struct, frozen=True):
    """The application adds the client to the presence set of the subscription, or removes it."""

    join: bool
    member: Member


class Reply(Struct, frozen=True):
    """The reply of an action to its caller: `result`, as JSON, or an error if there is a `code`.

    `to` is the id that the caller gave its call, as JSON. `text` is for people to read.
    """

    action: str
    to: bytes = b"null"
    result: bytes = b"null"
    code: str = ""
    text: str = ""


class CommandResult(Struct, frozen=True):
    """The result of a command call. A subscription that is not accepted has no streams, but its transmissions are sent anyway.

    `state` changes the connection's state, `own` the subscription's. `stopped` streams are removed before `streams` are added.
    `publications` are registered once everything else is done, and then an action's `reply` is sent.
    """

    accepted: bool = True
    transmissions: tuple[str, ...] = ()
    streams: tuple[str, ...] = ()
    stopped: tuple[str, ...] = ()
    stop_all: bool = False
    state: State = {}
    own: State = {}
    presence_update: PresenceUpdate | None = None
    publications: tuple[Publication, ...] = ()
    disconnect: bool = False
    reason: str = ""
    reply: Reply | None = None


class RestoreCall(Struct, frozen=True):
    """A session is restored: it was `former` and is `context.sid` now. Its subscriptions with the state of each."""

    context: CallContext
    former: str
    subscriptions: dict[str, State] = {}


class RestoreResult(Struct, frozen=True):
    """The result of a restore call. `own` are state changes by identifier."""

    transmissions: tuple[str, ...] = ()
    state: State = {}
    own: dict[str, State] = {}
    publications: tuple[Publication, ...] = ()
    disconnect: bool = False


class DisconnectCall(Struct, frozen=True):
    """A session has ended for good. `subscriptions`: those that the application had granted, with the state of each."""

    context: CallContext
    subscriptions: dict[str, State] = {}
