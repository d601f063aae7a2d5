"""What a stream yields: messages, gaps and, when asked for, presence changes. Frozen; in the order the server gave them."""

from typing import Any

from msgspec import Struct

from ropewalk.model.messages import Position
from ropewalk.protocol.broky.frames import Format
from ropewalk.protocol.stream_keys import key_of

UNREADABLE = "unreadable"
"""The reason of a Gap in the place of a message that arrived and cannot be decoded: asking for it again would not help."""


class Message(Struct, frozen=True):
    """One message. `stream`, `epoch` and `offset` are where it stands; a whisper or a transient one has no place ("", "", 0).

    `replayed` tells that it came in answer to a history request, not live.
    """

    data: Any
    stream: str
    epoch: str = ""
    offset: int = 0
    type: str = ""
    replayed: bool = False

    @property
    def position(self) -> Position | None:
        """What to keep in order to go on after this message later; None for a message without a position."""
        return Position(self.epoch, self.offset) if self.offset else None


class BrokyMessage(Message, frozen=True, gc=False):
    """A message that came over TCP: a Message, and what only Broky tells of it.

    `data` is what was published if its format is JSON, else the bytes of `payload` themselves. Times are microseconds since
    1970, 0 where there is none. `uid` is a KSUID of 20 bytes, or empty. `key_partition` is empty where it is the key.
    """

    payload: bytes = b""
    format: Format = Format.BYTES
    ts_broker: int = 0
    ts_producer: int = 0
    uid: bytes = b""
    key_partition: bytes = b""

    @property
    def key(self) -> bytes:
        """The stream as producers over TCP name it."""
        return key_of(self.stream)


class Gap(Struct, frozen=True):
    """Messages of a stream that will not come. The stream goes on after it: `resumes_at` is the next offset to expect.

    `reason` is text: a value of `ropewalk.model.history.GapReason`, UNREADABLE, what the server said, or "" if it said nothing.
    `known` is the last position that was seen. `epoch`, `resumes_at` and `tip` are where the stream stands now. All are None if
    the gap gives no position: then go on from `known`.
    """

    stream: str
    reason: str = ""
    known: Position | None = None
    epoch: str | None = None
    resumes_at: int | None = None
    tip: int | None = None

    @property
    def missed(self) -> int | None:
        """How many messages are lost; None when that cannot be known."""
        if self.known is None or self.resumes_at is None or self.epoch != self.known.epoch:
            return None
        return max(0, self.resumes_at - 1 - self.known.offset)


class KeptMessages(Struct, frozen=True):
    """A page of what a stream keeps. `events` are its messages in their order; a Gap comes first where they do not follow the
    position that was asked for, and one is in the place of a message that cannot be decoded.

    `position` is where the page ends, to read on from. If the server does not know the stream it is the position of the
    request, or None without one. `oldest` is the first offset that is kept, `tip` the last one.
    """

    events: "list[Event]"
    position: Position | None = None
    oldest: int = 0
    tip: int = 0

    @property
    def more(self) -> bool:
        """Whether there is something behind this page."""
        return self.position is not None and self.position.offset < self.tip


class PresentMember(Struct, frozen=True):
    """One identity that is there, and what it says of itself."""

    id: str
    info: Any = None


class PresenceChange(Struct, frozen=True):
    """A member joined or left."""

    joined: bool
    member: PresentMember


class PresenceState(Struct, frozen=True):
    """Who is there. `total` counts all members, also those that are not listed.

    `next` is the id after which a page of a long list goes on; the client follows it, so that a program finds it empty.
    """

    total: int
    members: tuple[PresentMember, ...] = ()
    next: str = ""


Event = Message | Gap | PresenceChange
