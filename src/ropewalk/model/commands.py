"""The commands a client may send, decoded and checked."""

from msgspec import Struct

from ropewalk.model.history import HistoryRequest
from ropewalk.model.messages import Position
from ropewalk.model.presence import Member
from ropewalk.model.sessions import NotGranted


class Subscribe(Struct, frozen=True):
    identifier: str
    history: HistoryRequest | None = None
    presence: Member | None = None


class SubscribePrefix(Struct, frozen=True):
    """To everything new on all streams whose key begins with `prefix`, which has a name as a stream has. `refused`: what the
    protocol has against it."""

    identifier: str
    name: str
    prefix: bytes
    refused: NotGranted | None = None


class Unsubscribe(Struct, frozen=True):
    identifier: str


class Perform(Struct, frozen=True):
    """Action Cable's `message` command: an action for the channel's application."""

    identifier: str
    data: str


class History(Struct, frozen=True):
    identifier: str
    history: HistoryRequest


class ReadHistory(Struct, frozen=True):
    """At most `limit` messages that are kept after a position, without a subscription. Without an epoch the position is one of
    whichever the stream is in."""

    identifier: str
    after: Position
    limit: int


class Whisper(Struct, frozen=True):
    identifier: str
    payload: bytes


class Presence(Struct, frozen=True):
    """`after`: list members with ids after this one, where an answer was too long for all of them."""

    identifier: str
    return_records: bool = True
    after: str = ""


class Join(Struct, frozen=True):
    identifier: str
    member: Member


class Leave(Struct, frozen=True):
    identifier: str


class Ping(Struct, frozen=True):
    pass


class Pong(Struct, frozen=True):
    pass


class Unusable(Struct, frozen=True):
    """A well-formed object that asks for nothing we can do: counted and logged, no reply, the connection stays."""

    reason: str


Command = (
    Subscribe
    | SubscribePrefix
    | Unsubscribe
    | Perform
    | History
    | ReadHistory
    | Whisper
    | Presence
    | Join
    | Leave
    | Ping
    | Pong
    | Unusable
)
