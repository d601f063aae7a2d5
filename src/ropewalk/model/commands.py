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
    """Subscribe to new messages of all streams with the key prefix `prefix`. `refused`: the protocol's reason to refuse it."""

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
    """Read at most `limit` kept messages after a position, without a subscription. A position without an epoch is one of the
    stream's current epoch."""

    identifier: str
    after: Position
    limit: int


class Whisper(Struct, frozen=True):
    identifier: str
    payload: bytes


class Presence(Struct, frozen=True):
    """`after`: list members with ids after this one, if they do not fit into one answer."""

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
    """A well-formed command that is unknown or incomplete: counted and logged, without a reply; the connection stays."""

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
