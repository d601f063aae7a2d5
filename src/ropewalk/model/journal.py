"""The journal's rows: what was registered, and what happened to sessions and members, each kind under its own name."""

from enum import StrEnum

from msgspec import Struct


class RowKind(StrEnum):
    PUBLISH = "publish"
    CONNECTED = "connected"
    RESTORED = "restored"
    DISCONNECTED = "disconnected"
    SUBSCRIBED = "subscribed"
    UNSUBSCRIBED = "unsubscribed"
    JOINED = "joined"
    LEFT = "left"


class Row(Struct, frozen=True, gc=False):
    """One line of the journal, before it has its place in its shard.

    `key` decides the shard: the stream's name, or the sid for what concerns a session alone. `detail` is JSON text of what
    this kind needs to be understood again after a restart. `producer` and `sequence` name a publication that came by
    a transaction: the application, and batch << 32 | index of the row in it.
    """

    kind: RowKind
    key: str
    timestamp: float
    stream: str = ""
    epoch: str = ""
    offset: int = 0
    value: bytes = b""
    uid: str = ""
    exclude_socket: str = ""
    broadcast_type: str = ""
    sid: str = ""
    detail: str = ""
    producer: str = ""
    sequence: int = 0


class StreamTip(Struct, frozen=True, gc=False):
    """How far a stream had come."""

    stream: str
    epoch: str
    tip: int
    timestamp: float


class ShardSpan(Struct, frozen=True):
    """Positions [first, end) of one shard that can be read under one name of the shard's own life."""

    shard: int
    epoch: str
    first: int
    end: int
