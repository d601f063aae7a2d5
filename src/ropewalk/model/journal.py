"""The journal: its columns, the kinds of its rows, generations of positions, and the marks of readers.

Each of them is declared here and nowhere else: the Arrow and Spark schemas, the archive's columns and the page
`docs/reference/journal-rows.md` derive from it. The order of the columns is the one on disk.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from itertools import pairwise
from typing import Annotated, Self

import msgspec
from msgspec import Meta, Struct, field

GENERATION_BITS = 40
"""The number of a generation is stored above the lowest 40 bits of its positions. So each begins above all positions of the
one before."""

GENERATION_SIZE = 1 << GENERATION_BITS
"""Every generation of a shard begins at a multiple of this."""


DURABILITIES = ("memory", "journal", "fsync")
"""When rows are acknowledged: at once, once they are written, or once they are on the disk."""


class RowKind(StrEnum):
    """What a row tells. `meaning` is for the reference page."""

    meaning: str

    def __new__(cls, name: str, meaning: str = "") -> Self:
        kind = str.__new__(cls, name)
        kind._value_ = name
        kind.meaning = meaning
        return kind

    PUBLISH = "publish", "a message was registered"
    CONNECTED = "connected", "a new session"
    RESTORED = "restored", "a session came back under a new sid; the whole session, and its `former` sid"
    ALIVE = "alive", "the whole session again, after its changes had become longer than that"
    CHANGED = "changed", "what the application keeps with the session or with a subscription has changed"
    DISCONNECTED = (
        "disconnected",
        "the connection is gone; `kept` if the session can be resumed. A second one, without `kept`, if a remote disconnect "
        "ended it while it was away",
    )
    ENDED = "ended", "the session is over: it cannot be resumed, and the application has been told"
    REVOKED = "revoked", "a remote disconnect came; its key is the identifier it names"
    SUBSCRIBED = "subscribed", "a subscription began"
    UNSUBSCRIBED = "unsubscribed", "a subscription ended"
    JOINED = "joined", "a member came to a presence set"
    LEFT = "left", "a member left a presence set. Without a `sid`: its time was over"


class ColumnType(StrEnum):
    """The values are Arrow's names."""

    TEXT = "string"
    BYTES = "binary"
    NUMBER = "int64"
    TIME = "timestamp[us, tz=UTC]"


class Column(Struct, frozen=True):
    """A column of the journal. One that is not required is null in rows that have nothing for it. `sent`: a body of rows to
    publish may have it."""

    name: str
    type: ColumnType
    meaning: str
    required: bool = False
    sent: bool = False


COLUMNS = (
    Column("position", ColumnType.NUMBER, "place in the shard", required=True),
    Column("event", ColumnType.TEXT, "what the row tells, see [events](#events)", required=True),
    Column("stream", ColumnType.TEXT, "where it was published, subscribed or joined", sent=True),
    Column("epoch", ColumnType.TEXT, "with `offset`: the position in the stream, as clients see it"),
    Column("offset", ColumnType.NUMBER, "place in the epoch of the stream"),
    Column("timestamp", ColumnType.TIME, "when it was registered", required=True),
    Column(
        "key",
        ColumnType.TEXT,
        "what decided the shard: the `partition_key` of a stream (its name, unless it was [published](http.md#publish) with "
        "another), or the sid of a session",
        required=True,
    ),
    Column("value", ColumnType.BYTES, "the message, as JSON text; only publications have one", sent=True),
    Column("uid", ColumnType.TEXT, "the publication's idempotency key", sent=True),
    Column("exclude_socket", ColumnType.TEXT, "as [published](http.md#publish)", sent=True),
    Column("broadcast_type", ColumnType.TEXT, "as [published](http.md#publish)", sent=True),
    Column("sid", ColumnType.TEXT, "the session"),
    Column(
        "detail",
        ColumnType.TEXT,
        "what else is known, as JSON text: of what a session did; of a publication `ts_producer`, its producer's own time in "
        "microseconds, where [one was given](broky.md#run)",
    ),
    Column(
        "producer",
        ColumnType.TEXT,
        "the application of what came by a [transaction](journal.md#transactions) or with [numbers](journal.md#numbered-rows)",
        sent=True,
    ),
    Column("sequence", ColumnType.NUMBER, "the row's number, in the order of its producer", sent=True),
)


class Row(Struct, frozen=True, gc=False):
    """One row of the journal, before it has a position in its shard. Its fields are the columns of the same names, and `kind`
    is the column `event`.

    `key` decides the shard: the stream's partition key, or the sid for what a session does. `detail` is JSON text of what this
    kind needs to be understood again after a restart, see `session_log` and `PublicationDetail`. `producer` and `sequence` name
    a publication that came by a transaction: the application, and batch << 32 | index of the row in it.
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


class PublicationDetail(Struct, frozen=True):
    """The `detail` of a publication. It has none where this is 0."""

    ts_producer: int = 0


_publication_detail = msgspec.json.Decoder(PublicationDetail).decode


def publication_detail(ts_producer: int) -> str:
    return msgspec.json.encode(PublicationDetail(ts_producer)).decode() if ts_producer else ""


def ts_producer_of(detail: str) -> int:
    return _publication_detail(detail).ts_producer if detail else 0


class QueuedRows(Struct, frozen=True):
    """Rows that wait to be recorded. `mark` says to the queue where they end."""

    rows: tuple[Row, ...] = ()
    mark: str = ""


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

    shard: Annotated[int, Meta(description="the number of the shard")]
    epoch: Annotated[str, Meta(description="the name of the generation")]
    first: Annotated[int, Meta(description="the first position that can be read")]
    end: Annotated[int, Meta(description="the position after the last one")]


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
    """A reader's position in one generation of a shard. Rows below it have been read. An empty epoch is before everything.
    Encoded as in a query's offsets."""

    epoch: Annotated[str, Meta(description="the name of the generation; empty before everything")] = field(name="e")
    position: Annotated[int, Meta(description="the next position to read")] = field(name="p")


Marks = Mapping[int, ShardMark]
"""By shard."""


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
