"""What a stream yields: messages, gaps and, on request, presence changes. Frozen, in the order of the server."""

from typing import Any

from msgspec import Struct

from ropewalk.model.messages import Position
from ropewalk.protocol.broky.frames import Format
from ropewalk.protocol.stream_keys import encode_key

UNREADABLE = "unreadable"
"""Reason of a Gap that replaces a message which cannot be decoded. It is not requested again."""


class Message(Struct, frozen=True):
    """One message. `stream`, `epoch` and `offset` are its position; a whisper or a transient message has none ("", "", 0).

    `replayed`: it was part of the history, not live.
    """

    data: Any
    stream: str
    epoch: str = ""
    offset: int = 0
    type: str = ""
    replayed: bool = False

    @property
    def position(self) -> Position | None:
        """Store it to resume after this message later. None for a message without a position."""
        return Position(self.epoch, self.offset) if self.offset else None


class BrokyMessage(Message, frozen=True, gc=False):
    """A message over TCP, with the fields that only Broky has.

    `data` is decoded JSON if `format` is JSON, else it is `payload`. Times are microseconds since 1970, or 0. `uid` is a KSUID
    of 20 bytes, or empty. `key_partition` is empty if it is the key.
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
        return encode_key(self.stream)


class Gap(Struct, frozen=True):
    """Messages that will not be delivered. The stream continues: `resumes_at` is the next expected offset.

    `reason` is a value of `ropewalk.model.history.GapReason`, UNREADABLE, "disconnected", other text of the server, or "" if it
    gave none. `known` is the last position that was seen. `epoch`, `resumes_at` and `tip` are the stream's present position.
    All are None if the gap gives no position: then resume from `known`.
    """

    stream: str
    reason: str = ""
    known: Position | None = None
    epoch: str | None = None
    resumes_at: int | None = None
    tip: int | None = None

    @property
    def missed(self) -> int | None:
        """The number of lost messages, None if unknown."""
        if self.known is None or self.resumes_at is None:
            return None
        if self.known.epoch != self.epoch and self.known != Position("", 0):  # which is the beginning of any epoch
            return None
        return max(0, self.resumes_at - 1 - self.known.offset)


class KeptMessages(Struct, frozen=True):
    """A page of a stream's history. `events` are its messages in order. A Gap comes first if they do not follow the requested
    position, and replaces a message that cannot be decoded.

    `position` is the end of the page: read on from there. If the server does not know the stream, it is the requested one or
    None. `oldest` and `tip` are the first and last stored offsets.
    """

    events: "list[Event]"
    position: Position | None = None
    oldest: int = 0
    tip: int = 0

    @property
    def more(self) -> bool:
        """Whether more messages follow this page."""
        return self.position is not None and self.position.offset < self.tip


class PresentMember(Struct, frozen=True):
    """A present identity with its own description."""

    id: str
    info: Any = None


class PresenceChange(Struct, frozen=True):
    """A member joined or left."""

    joined: bool
    member: PresentMember


class PresenceState(Struct, frozen=True):
    """The present members. `total` also counts members that are not listed.

    `next`: the id after which the next page starts. Empty for programs, because the client reads all pages.
    """

    total: int
    members: tuple[PresentMember, ...] = ()
    next: str = ""


Event = Message | Gap | PresenceChange
