"""The state of a shard at the beginning of a segment, saved beside it: tips of streams, sequences of producers, rows of open
sessions.

Invariant: Arrow merges it from tables, never row by row, and it can be recomputed from older segments while they exist. So
session rows are never rewritten. Which rows of a session are kept depends on the rows and their order, never on their age.

The file has one batch of streams and producers, then batches of session rows. Older versions wrote only the first one.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from ropewalk.adapters.journals.arrow.batches import MICROSECONDS, decode, frame_at, frame_batch
from ropewalk.adapters.journals.arrow.records import Disk
from ropewalk.adapters.journals.arrow.segment import state_path
from ropewalk.model.journal import Row, RowKind, StreamTip
from ropewalk.protocol.journal_schema import INT64, SCHEMA, STRING, TIME

STREAM = "stream"
PRODUCER = "producer"
PARTITION_KEY = "partition_key"
"""The partition key of a stream, if it is not its name. `name` has the epoch and the stream name, since a new epoch may have
another key; `epoch` has the key. Older versions neither write nor need these lines."""

COLUMNS = ("kind", "name", "epoch", "reached", "timestamp")
TIPS = pa.schema([("kind", STRING), ("name", STRING), ("epoch", STRING), ("reached", INT64), ("timestamp", TIME)])

BATCH_ROWS = 4096
"""Maximum session rows of one batch: a text column is limited to 2 GiB."""


class ShardState(Struct, frozen=True):
    """`tips`: a line for each stream and producer; `sessions`: rows of the journal, in order."""

    tips: Any
    sessions: Any

    @property
    def num_rows(self) -> int:
        return int(self.tips.num_rows + self.sessions.num_rows)


EMPTY = ShardState(TIPS.empty_table(), SCHEMA.empty_table())


def save_state(segment: Path, shard: int, first: int, state: ShardState, disk: Disk) -> None:
    tips = pa.RecordBatch.from_arrays([_whole(column) for column in state.tips.columns], schema=TIPS)
    sessions = state.sessions.to_batches(max_chunksize=BATCH_ROWS)
    frames = [frame_batch(batch, shard, first, 0, members=1 + len(sessions)) for batch in (tips, *sessions)]
    disk.replace(state_path(segment), b"".join(frames))


def load_state(segment: Path, shard: int, first: int) -> ShardState | None:
    """None if it is missing or damaged."""
    messages: list[bytes] = []
    members = at = 0
    try:
        with memoryview(state_path(segment).read_bytes()) as data:
            while at < len(data):
                frame = frame_at(data, at)
                if frame is None or (frame.shard, frame.first) != (shard, first):
                    return None
                messages.append(bytes(data[at : at + frame.length]))
                members, at = frame.members or 1, at + frame.length
    except OSError:
        return None
    if not messages or len(messages) != members:
        return None
    tips, *sessions = messages
    return ShardState(_table([tips], TIPS), _table(sessions, SCHEMA))


def merge(before: ShardState, tables: Iterable[Any]) -> ShardState:
    """The state after the rows of these tables, in this order."""
    streams, keys, producers = [_of(before, STREAM)], [_of(before, PARTITION_KEY)], [_of(before, PRODUCER)]
    sessions, waiting = [before.sessions], 0
    for table in tables:
        published = _published(table)
        streams.append(_columns(STREAM, published, "stream", "epoch", "offset"))
        keys.append(_columns(PARTITION_KEY, _with_partition_key(published), "stream", "key", "offset"))
        producers.append(_columns(PRODUCER, table.filter(table["producer"].is_valid()), "producer", "epoch", "sequence"))
        sessions.append(of_sessions(table))
        waiting += sessions[-1].num_rows
        if waiting > sessions[0].num_rows + BATCH_ROWS:  # not for every table: each pass covers all open sessions
            sessions, waiting = [going_on(pa.concat_tables(sessions))], 0
    tips = pa.concat_tables([_latest(streams), _latest(keys), _latest(producers)])
    return ShardState(tips, going_on(pa.concat_tables(sessions)))


def without_tips(state: ShardState) -> ShardState:
    return ShardState(_of(state, PRODUCER), state.sessions)


def younger(state: ShardState, oldest: float) -> ShardState:
    """Drop streams without a publication since `oldest`. Producers stay, since an application may return after weeks."""
    young = pc.greater_equal(state.tips["timestamp"].cast(INT64), int(oldest * MICROSECONDS))
    return ShardState(state.tips.filter(pc.or_(young, pc.equal(state.tips["kind"], PRODUCER))), state.sessions)


def stream_tips(state: ShardState) -> list[StreamTip]:
    table, special = _of(state, STREAM), _of(state, PARTITION_KEY)
    keys: dict[str, str] = dict(zip(special["name"].to_pylist(), special["epoch"].to_pylist(), strict=True))
    columns = [table[name].to_pylist() for name in ("name", "epoch", "reached")]
    times = table["timestamp"].cast(INT64).to_pylist()
    return [
        StreamTip(name, epoch, tip, at / MICROSECONDS, keys.get(f"{epoch}/{name}", ""))
        for (name, epoch, tip), at in zip(zip(*columns, strict=True), times, strict=True)
    ]


def producer_sequences(state: ShardState) -> dict[str, int]:
    table = _of(state, PRODUCER)
    return dict(zip(table["name"].to_pylist(), table["reached"].to_pylist(), strict=True))


def session_rows(state: ShardState) -> Iterator[Row]:
    for batch in state.sessions.to_batches():
        yield from decode(batch, 0)


def _published(table: Any) -> Any:
    return table.filter(pc.equal(table["event"], RowKind.PUBLISH.value))


def _with_partition_key(published: Any) -> Any:
    """Rows of streams with a partition key of their own, named as in the state's lines."""
    rows = published.filter(pc.not_equal(published["key"], published["stream"]))
    return rows.set_column(
        rows.schema.get_field_index("stream"), "stream", pc.binary_join_element_wise(rows["epoch"], rows["stream"], "/")
    )


def _of(state: ShardState, kind: str) -> Any:
    return state.tips.filter(pc.equal(state.tips["kind"], kind))


def _columns(kind: str, table: Any, name: str, epoch: str, reached: str) -> Any:
    kinds = pa.repeat(pa.scalar(kind, STRING), table.num_rows)
    return pa.Table.from_arrays([kinds, table[name], table[epoch], table[reached], table["timestamp"]], schema=TIPS)


def _latest(tables: list[Any]) -> Any:
    """The last line of each name. Single-threaded, because "last" depends on the order."""
    table = pa.concat_tables(tables)
    if table.num_rows == 0:
        return EMPTY.tips
    latest = table.group_by("name", use_threads=False).aggregate([(column, "last") for column in COLUMNS if column != "name"])
    named = {"name": latest["name"], **{column: latest[f"{column}_last"] for column in COLUMNS if column != "name"}}
    return pa.Table.from_arrays([named[column] for column in COLUMNS], schema=TIPS)


def _table(messages: list[bytes], schema: Any) -> Any:
    return pa.Table.from_batches([pa.ipc.read_record_batch(pa.py_buffer(each), schema) for each in messages], schema)


# --- the session rows that a recovery needs --------------------------------------------------------------------------

BEGINNINGS = pa.array([RowKind.CONNECTED.value, RowKind.RESTORED.value, RowKind.ALIVE.value])
"""Rows with the complete state of a session. They supersede its earlier rows."""


def of_sessions(table: Any) -> Any:
    """The session rows of a table."""
    return table.filter(pc.and_(table["sid"].is_valid(), pc.not_equal(table["event"], RowKind.PUBLISH.value)))


def going_on(rows: Any) -> Any:
    """Drop the rows of ended sessions, and for the others all rows before their last complete state."""
    if rows.num_rows == 0:
        return rows
    ended = rows.filter(pc.equal(rows["event"], RowKind.ENDED.value))["sid"].unique()
    rows = rows.filter(pc.invert(pc.is_in(rows["sid"], ended)))
    places = pa.array(range(rows.num_rows), pa.int64())
    gone = _by_sid(rows, places, pc.equal(rows["event"], RowKind.DISCONNECTED.value), "min")
    # Older versions wrote complete states after the end of a session. They must not hide the end.
    before_its_end = pc.fill_null(pc.less(places, _looked_up(rows["sid"], gone)), True)
    beginning = pc.and_(pc.is_in(rows["event"], BEGINNINGS), before_its_end)
    first = _looked_up(rows["sid"], _by_sid(rows, places, beginning, "max"))
    return rows.filter(pc.fill_null(pc.greater_equal(places, first), False))


def _by_sid(rows: Any, places: Any, wanted: Any, which: str) -> Any:
    """The first or last matching row number of each session."""
    table = pa.table({"sid": rows["sid"].filter(wanted), "place": places.filter(_whole(wanted))})
    return table.group_by("sid").aggregate([("place", which)])


def _looked_up(sids: Any, places: Any) -> Any:
    """The row number for each sid, or null."""
    found = pc.index_in(_whole(sids), _whole(places["sid"]))
    return pc.take(_whole(places[places.column_names[1]]), found)


def _whole(column: Any) -> Any:
    """As an array of one chunk."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
