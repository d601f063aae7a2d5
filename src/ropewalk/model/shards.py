"""The content of one shard of a store, as records: what passes from one node of a ring to another.

Times are absolute, as those of messages are: nodes of a ring have clocks that agree to within seconds.
"""

from collections.abc import Sequence

from msgspec import Struct

from ropewalk.model.messages import Position, Registered
from ropewalk.model.presence import Member
from ropewalk.model.sessions import SessionTaken


class StreamContent(Struct, frozen=True, array_like=True, tag=0):
    """A stream: how far it has come, and what is kept of it. Cut into pieces, each of them has some of the messages."""

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
    """`data` is the encoded snapshot. `deadline`: None while it lives on `node`."""

    sid: str
    ids: str
    data: bytes
    node: str
    version: int
    ttl: float
    deadline: float | None
    formers: tuple[str, ...]


class SessionGone(Struct, frozen=True, array_like=True, tag=4, gc=False):
    """A sid that was given away or is over, and until when it is known as such. `order`: what its node is told."""

    until: float
    order: SessionTaken


class SessionOver(Struct, frozen=True, array_like=True, tag=5, gc=False):
    """An expired session that nobody has asked for yet."""

    sid: str
    data: bytes


class OrderContent(Struct, frozen=True, array_like=True, tag=6):
    """What a node has not heard yet of one of its sessions."""

    node: str
    order: SessionTaken


class Revocation(Struct, frozen=True, array_like=True, tag=7, gc=False):
    """An identity whose sessions were ended by an order, when, and until when that is known. `reconnect` is the order's. Each
    shard has a copy."""

    ids: str
    at: float
    until: float
    reconnect: bool


class SeatContent(Struct, frozen=True, array_like=True, gc=False):
    """A sid that holds a member: the node on which it lives ("" for none), and when what it holds ends if it is detached."""

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
    | SessionGone
    | SessionOver
    | OrderContent
    | Revocation
    | MemberContent
)
