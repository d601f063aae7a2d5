"""What is said between a session and the application behind the server.

State is text by key, kept by the session on the application's behalf: one map for the connection, one for each subscription.
Answers carry changes of it: a key with another value, or with "" to delete it.
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


def merged(state: State, changes: State) -> State:
    """The state with the changes in it. Neither is touched."""
    return {key: value for key, value in {**state, **changes}.items() if value} if changes else state


class Caller(Struct, frozen=True):
    """Whose call it is. `headers` are those that the settings pass on, in lower case, and `REMOTE_ADDR`; `ids` are empty until
    somebody has said who it is."""

    sid: str
    url: str = ""
    headers: dict[str, str] = {}
    ids: str = ""
    state: State = {}


class Admission(Struct, frozen=True):
    """The answer to a connect. `transmissions` are JSON texts for the client; `reason` is for the log."""

    accepted: bool
    ids: str = ""
    transmissions: tuple[str, ...] = ()
    state: State = {}
    reason: str = ""


class Action(StrEnum):
    """What a client wants of a channel. The words are those of the wire."""

    SUBSCRIBE = "subscribe"
    UNSUBSCRIBE = "unsubscribe"
    PERFORM = "message"


class Call(Struct, frozen=True):
    """A command for a channel; `state` is that of the subscription, `data` what an action brings along."""

    caller: Caller
    action: Action
    identifier: str
    state: State = {}
    data: str = ""


class Seating(Struct, frozen=True):
    """The application puts the client into the presence set of the subscription, or takes it out."""

    join: bool
    member: Member


class Reply(Struct, frozen=True):
    """What an action says to the one who called it: `result`, as JSON, or an error if there is a `code`.

    `to` is the name that the caller gave its call, as JSON. `text` is for people to read.
    """

    action: str
    to: bytes = b"null"
    result: bytes = b"null"
    code: str = ""
    text: str = ""


class Answer(Struct, frozen=True):
    """The answer to a call. A subscription that is not accepted has no streams, but its transmissions are sent all the same.

    `state` changes that of the connection, `own` that of the subscription. `stopped` streams go before `streams` come.
    `publications` are registered once everything else is done, and then an action's `reply` is sent.
    """

    accepted: bool = True
    transmissions: tuple[str, ...] = ()
    streams: tuple[str, ...] = ()
    stopped: tuple[str, ...] = ()
    stop_all: bool = False
    state: State = {}
    own: State = {}
    seating: Seating | None = None
    publications: tuple[Publication, ...] = ()
    disconnect: bool = False
    reason: str = ""
    reply: Reply | None = None


class Comeback(Struct, frozen=True):
    """A session is restored: it was `former` and is `caller.sid` now. Its subscriptions with the state of each."""

    caller: Caller
    former: str
    subscriptions: dict[str, State] = {}


class Greeting(Struct, frozen=True):
    """The answer to a comeback. `own` are changes by identifier."""

    transmissions: tuple[str, ...] = ()
    state: State = {}
    own: dict[str, State] = {}
    publications: tuple[Publication, ...] = ()
    disconnect: bool = False


class Farewell(Struct, frozen=True):
    """A session is gone for good. The subscriptions that the application had granted, with the state of each."""

    caller: Caller
    subscriptions: dict[str, State] = {}
