"""The commands a client may send, decoded and checked."""

from msgspec import Struct

from ropewalk.model.history import HistoryRequest
from ropewalk.model.presence import Member


class Subscribe(Struct, frozen=True):
    identifier: str
    history: HistoryRequest | None = None
    presence: Member | None = None


class Unsubscribe(Struct, frozen=True):
    identifier: str


class Perform(Struct, frozen=True):
    """Action Cable's `message` command: an action for the channel's application."""

    identifier: str
    data: str


class History(Struct, frozen=True):
    identifier: str
    history: HistoryRequest


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


Command = Subscribe | Unsubscribe | Perform | History | Whisper | Presence | Join | Leave | Ping | Pong | Unusable
