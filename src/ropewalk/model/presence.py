"""Presence: which members are in a stream. A member is one identity; several sessions may hold it."""

from typing import Literal

from msgspec import Struct


class Member(Struct, frozen=True):
    """One identity and what it says of itself (`info` is raw JSON text, empty when it said nothing)."""

    id: str
    info: bytes = b""

    def longest(self) -> int:
        """Bytes of the id or of the info, whichever is longer."""
        return max(len(self.id.encode()), len(self.info))


class PresenceEvent(Struct, frozen=True):
    """A member appeared in a stream's presence set, or its last session left it."""

    type: Literal["join", "leave"]
    stream: str
    member: Member


class PresencePage(Struct, frozen=True):
    """Members in order of id. `total` counts all of them; `next_id` is the id to ask after next, None at the end."""

    stream: str
    total: int
    members: tuple[Member, ...] = ()
    next_id: str | None = None
