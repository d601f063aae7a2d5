"""The journal: its columns, the kinds of its rows, generations of positions, and the marks of readers.

This is their only declaration: the Arrow and Spark schemas, the archive's columns and the page
`docs/reference/journal-rows.md` derive from it. The order of the columns is the one on disk.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from itertools import pairwise
from typing import Annotated, Self

import msgspec
from msgspec import Meta, Struct, field

GENERATION_BITS = 40
"""A position has the number of its generation above its lowest 40 bits. So a generation begins above all positions of the
previous one."""

GENERATION_SIZE = 1 << GENERATION_BITS
"""Every generation of a shard begins at a multiple of this."""


DURABILITIES = ("memory", "journal", "fsync")
"""When rows are acknowledged: at once, when they are written, or when they are on disk."""


class RowKind(StrEnum):
    """The kind of a row. `meaning` is for the reference page."""

    meaning: str

    def __new__(cls, name: str, meaning: str = "") -> Self:
        kind = str.__new__(cls, name)
        kind._value_ = name
        kind.meaning = meaning
        return kind

    PUBLISH = "publish", "a message was registered"
    CONNECTED = "connected", "a new session"
    RESTORED = "restored", "a session was resumed under a new sid; the full session, and its `former` sid"
    ALIVE = "alive", "the full session again, after its changes had become longer than that"
    CHANGED = "changed", "the application's state of the session or of a subscription has changed"
    DISCONNECTED = (
        "disconnected",
        "the connection is gone; `kept` if the session can be resumed. A second row, without `kept`, if a remote disconnect "
        "ended it while it was disconnected",
    )
    ENDED = "ended", "the session has ended: it cannot be resumed, and its end was reported to the application"
    REVOKED = "revoked", "a remote disconnect; its key is the connection identifier"
    SUBSCRIBED = "subscribed", "a subscription began"
    UNSUBSCRIBED = "unsubscribed", "a subscription ended"
    JOINED = "joined", "a member joined a presence set"
    LEFT = "left", "a member left a presence set. Without a `sid`: its presence TTL ended"


class ColumnType(StrEnum):
    """The values are Arrow's names."""

    TEXT = "string"
    BYTES = "binary"
    NUMBER = "int64"
    TIME = "timestamp[us, tz=UTC]"


class Column(Struct, frozen=True):
    """A column of the journal. One that is not required may be null. `sent`: a body of rows to publish may have it."""

    name: str
    type: ColumnType
    meaning: str
    required: bool = False
    sent: bool = False


COLUMNS = (
    Column("position", ColumnType.NUMBER, "place in the shard", required=True),
    Column("event", ColumnType.TEXT, "the kind of the row, see [events](#events)", required=True),
    Column("stream", ColumnType.TEXT, "the stream that was published, subscribed or joined", sent=True),
    Column("epoch", ColumnType.TEXT, "with `offset`: the position in the stream, as clients see it"),
    Column("offset", ColumnType.NUMBER, "place in the epoch of the stream"),
    Column("timestamp", ColumnType.TIME, "when it was registered", required=True),
    Column(
        "key",
        ColumnType.TEXT,
        "decides the shard: the `partition_key` of a stream (its name, unless it was [published](http.md#publish) with "
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
        "details as JSON text: of session rows; of a publication `ts_producer`, its producer's own timestamp in microseconds, "
        "if [one was given](broky.md#run)",
    ),
    Column(
        "producer",
        ColumnType.TEXT,
        "the application of a row from a [transaction](journal.md#transactions) or with [numbers](journal.md#numbered-rows)",
        sent=True,
    ),
    Column("sequence", ColumnType.NUMBER, "the row's number, in the order of its producer", sent=True),
)


class Row(Struct, frozen=True, gc=False):
    """One row of the journal, before it has a position in its shard. Its fields are the columns of the same names, and `kind`
    is the column `event`.

    Args:
        key: decides the shard: the stream's partition key, or the sid for session rows.
        detail: JSON text with what a restart needs of this kind, see `session_log` and `PublicationDetail`.
        producer: of a publication from a transaction: the application.
        sequence: of a publication from a transaction: batch << 32 | index of the row in it.
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
    """The `detail` of a publication with a producer's timestamp. Others have none."""

    ts_producer: int = 0


_publication_detail = msgspec.json.Decoder(PublicationDetail).decode


def encode_publication_detail(ts_producer: int) -> str:
    return msgspec.json.encode(PublicationDetail(ts_producer)).decode() if ts_producer else ""


def decode_ts_producer(detail: str) -> int:
    return _publication_detail(detail).ts_producer if detail else 0


class QueuedRows(Struct, frozen=True):
    """Rows in the queue for the journal. `mark`: their end in the queue."""

    rows: tuple[Row, ...] = ()
    mark: str = ""


class StreamTip(Struct, frozen=True, gc=False):
    """The last position of a stream. `partition_key`: "" for the stream's name."""

    stream: str
    epoch: str
    tip: int
    timestamp: float
    partition_key: str = ""


class ShardSpan(Struct, frozen=True):
    """Readable positions [first, end) of one generation of a shard; `epoch` is the generation's name.

    A generation that has ended stays listed, with `first` = `end`, after its rows are deleted, so that readers know its end.
    If the first rows of a generation were lost by damage, an empty span marks where they began.
    """

    shard: Annotated[int, Meta(description="the number of the shard")]
    epoch: Annotated[str, Meta(description="the name of the generation")]
    first: Annotated[int, Meta(description="the first position that can be read")]
    end: Annotated[int, Meta(description="the position after the last one")]


def count_shards(spans: Sequence[ShardSpan]) -> int:
    """The number of shards of a journal: each has at least one span. 0 without a journal."""
    return max((span.shard for span in spans), default=-1) + 1


def find_holes(spans: Sequence[ShardSpan]) -> list[ShardSpan]:
    """Positions between two spans of one epoch: they were written and can no longer be read."""
    return [
        ShardSpan(span.shard, span.epoch, before.end, span.first)
        for before, span in pairwise(spans)
        if (before.shard, before.epoch) == (span.shard, span.epoch)
    ]


def first_kept_span(own: Sequence[ShardSpan]) -> ShardSpan | None:
    """The first of one shard's spans that still has rows, or the last span if none has."""
    return next((span for span in own if span.end > span.first), own[-1] if own else None)


class ShardMark(Struct, frozen=True):
    """A reader's position in one generation of a shard. Rows below it have been read. An empty epoch is the beginning of the
    journal. Encoded as in a query's offsets."""

    epoch: Annotated[str, Meta(description="the name of the generation; empty for the beginning")] = field(name="e")
    position: Annotated[int, Meta(description="the next position to read")] = field(name="p")


Marks = Mapping[int, ShardMark]
"""By shard."""


class Consumer(Struct, frozen=True):
    """A named reader: its marks by shard, in order, and the time of its last progress."""

    name: str
    marks: dict[int, ShardMark]
    moved: float


class Recovered(Struct, frozen=True):
    """What a journal recovered at its start. Streams that lost messages, or may have, are not included: they begin new epochs.

    Args:
        shards: of the journal, which may differ from the setting.
        tips: of all streams, however old, before or after `rows`.
        rows: recent publications and all rows of sessions that have not ended, each shard's in order. Can be iterated once.
        producers: (producer, shard) → the last sequence there.
        newest: time of the newest row, 0 if there is none. Deadlines are extended by the downtime since then.
        notes: sentences for the log.
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
    """What a backend restored of it, in numbers, and rows that record the end of sessions that a crash interrupted."""

    streams: int
    messages: int
    sessions: int
    interrupted: list[Row]
