"""Presence: the members of a stream. A member is one identity; several sessions may hold it."""

from typing import Literal

from msgspec import Struct


class Member(Struct, frozen=True):
    """One identity. `info` is its raw JSON text for the others, or empty."""

    id: str
    info: bytes = b""

    def max_field_bytes(self) -> int:
        """The larger size of the id and the info, in bytes."""
        return max(len(self.id.encode()), len(self.info))


class PresenceEvent(Struct, frozen=True):
    """A member joined a stream's presence set, or its last session left it."""

    type: Literal["join", "leave"]
    stream: str
    member: Member


class PresencePage(Struct, frozen=True):
    """Members in order of id. `total` counts all of them; `next_id`: the next page begins after it, None at the end."""

    stream: str
    total: int
    members: tuple[Member, ...] = ()
    next_id: str | None = None
