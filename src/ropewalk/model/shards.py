"""The content of one shard of a store, as records, for a hand-over between nodes of a ring.

Times are absolute, as are those of messages: the clocks of a ring's nodes agree to within seconds.
"""

from collections.abc import Sequence

from msgspec import Struct

from ropewalk.model.messages import Position, Registered
from ropewalk.model.presence import Member
from ropewalk.model.sessions import SessionTaken


class StreamContent(Struct, frozen=True, array_like=True, tag=0):
    """A stream with its tip and its kept messages. A large one is split: each part has some of the messages."""

    stream: str
    epoch: str
    tip: int
    newest: float
    trimmed_at: float
    partition_key: str
    messages: Sequence[Registered]


class UidContent(Struct, frozen=True, array_like=True, tag=1, gc=False):
    stream: str
    uid: str
    position: Position
    until: float


class ProducerContent(Struct, frozen=True, array_like=True, tag=2):
    """`positions` are those of the latest sequences, oldest first."""

    producer: str
    last: int
    positions: Sequence[tuple[int, Position]]


class SessionContent(Struct, frozen=True, array_like=True, tag=3, gc=False):
    """`data` is the encoded snapshot. `deadline`: None while the session is live on `node`."""

    sid: str
    ids: str
    data: bytes
    node: str
    version: int
    ttl: float
    deadline: float | None
    formers: tuple[str, ...]


class EndedSession(Struct, frozen=True, array_like=True, tag=4, gc=False):
    """A sid that was resumed under another one or has ended, and until when the store keeps this. `notice`: for its node."""

    until: float
    notice: SessionTaken


class ExpiredSession(Struct, frozen=True, array_like=True, tag=5, gc=False):
    """An expired session whose end is not processed yet."""

    sid: str
    data: bytes


class PendingNotice(Struct, frozen=True, array_like=True, tag=6):
    """A message about a session that its node has not received yet."""

    node: str
    notice: SessionTaken


class Revocation(Struct, frozen=True, array_like=True, tag=7, gc=False):
    """An identity whose sessions a remote disconnect ended, and until when the store keeps this. `reconnect` is that of the
    disconnect. Each shard has a copy."""

    ids: str
    at: float
    until: float
    reconnect: bool


class SeatContent(Struct, frozen=True, array_like=True, gc=False):
    """A sid that holds a member: its node ("" for none), and the deadline of a detached one."""

    sid: str
    node: str
    deadline: float | None


class MemberContent(Struct, frozen=True, array_like=True, tag=8):
    """A member of a stream's presence set."""

    stream: str
    member: Member
    seats: Sequence[SeatContent]


ShardItem = (
    StreamContent
    | UidContent
    | ProducerContent
    | SessionContent
    | EndedSession
    | ExpiredSession
    | PendingNotice
    | Revocation
    | MemberContent
)
