"""Journal rows: publications, and what happened to sessions and presence members. Each kind of row has its own name."""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from itertools import pairwise

from msgspec import Struct, field

GENERATION_BITS = 40
"""The number of a generation is stored above the lowest 40 bits of its positions. So each begins above all positions of the
one before."""


class RowKind(StrEnum):
    PUBLISH = "publish"
    CONNECTED = "connected"
    RESTORED = "restored"
    ALIVE = "alive"  # a session that goes on, as a whole: written when its other rows have grown longer than that
    CHANGED = "changed"  # what the application keeps with a session or one of its subscriptions
    DISCONNECTED = "disconnected"
    ENDED = "ended"  # the session is over: it cannot be resumed, and the application has been told
    REVOKED = "revoked"  # a remote disconnect, under the identifier that it names
    SUBSCRIBED = "subscribed"
    UNSUBSCRIBED = "unsubscribed"
    JOINED = "joined"
    LEFT = "left"


class Row(Struct, frozen=True, gc=False):
    """One row of the journal, before it has a position in its shard.

    `key` decides the shard: the stream's partition key, or the sid for what a session does. `detail` is JSON text of what this
    kind needs to be understood again after a restart, see `session_log`. `producer` and `sequence` name a publication that came
    by a transaction: the application, and batch << 32 | index of the row in it.
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
    """How far a stream had come. `partition_key`: "" for the stream's name."""

    stream: str
    epoch: str
    tip: int
    timestamp: float
    partition_key: str = ""


class ShardSpan(Struct, frozen=True):
    """Readable positions [first, end) of one generation of a shard; `epoch` is the generation's name.

    A generation that has ended is listed with `first` = `end` after its rows are gone, so that readers know where it ended.
    Where the first rows of a generation were lost by damage, an empty span says where they began.
    """

    shard: int
    epoch: str
    first: int
    end: int


def shards_of(spans: Sequence[ShardSpan]) -> int:
    """The journal's own number of shards: each has one span at the least. 0 without a journal."""
    return max((span.shard for span in spans), default=-1) + 1


def holes_of(spans: Sequence[ShardSpan]) -> list[ShardSpan]:
    """Positions between two spans of one epoch: they were written, and cannot be read any more."""
    return [
        ShardSpan(span.shard, span.epoch, before.end, span.first)
        for before, span in pairwise(spans)
        if (before.shard, before.epoch) == (span.shard, span.epoch)
    ]


def oldest_kept(own: Sequence[ShardSpan]) -> ShardSpan | None:
    """Of one shard's spans the first that still has rows, or the last where none has."""
    return next((span for span in own if span.end > span.first), own[-1] if own else None)


class ShardMark(Struct, frozen=True):
    """A reader's position in one generation of a shard. Rows below it have been read. Encoded as in query parameters."""

    epoch: str = field(name="e")
    position: int = field(name="p")


class Consumer(Struct, frozen=True):
    """A named reader: its marks by shard, in order, and the time at which it last moved."""

    name: str
    marks: dict[int, ShardMark]
    moved: float


class Recovered(Struct, frozen=True):
    """What a journal recovered at its start. Streams that lost something, or may have, are not included: they begin new epochs.

    `tips` are those of all streams, however old, before or after `rows`; `rows` are publications young enough to matter and all
    rows of sessions that are not over, each shard's in order, and may be gone through once; `producers` is (producer, shard) →
    the last sequence there; `newest` is the time of the newest row (0 when there is none), for what a term means to those who
    could not come while nobody was here; `notes` are sentences for the log. `shards` is the journal's number of them, which may
    be another than the one it was asked for.
    """

    shards: int = 1
    tips: Iterable[StreamTip] = ()
    rows: Iterable[Row] = ()
    producers: dict[tuple[str, int], int] = {}
    newest: float = 0.0
    cut_bytes: int = 0
    reset_shards: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()


class Restored(Struct, frozen=True):
    """What a backend has put back of it, in numbers, and the rows of sessions whose end the journal had not heard of."""

    streams: int
    messages: int
    sessions: int
    interrupted: list[Row]
