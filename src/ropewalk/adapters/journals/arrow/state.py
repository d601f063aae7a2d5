"""How far a shard's streams and producers had come where a segment begins, kept beside the segment.

The rule it keeps: it is a table merged by Arrow, never row by row, and what it says can always be told again from older
segments while they are there.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ropewalk.adapters.journals.arrow.disk import Disk
from ropewalk.adapters.journals.arrow.framing import frame_at, frame_batch
from ropewalk.adapters.journals.arrow.schema import INT64, MICROSECONDS, STRING, TIME
from ropewalk.adapters.journals.arrow.segment import mapped
from ropewalk.model.journal import RowKind, StreamTip

STREAM = "stream"
PRODUCER = "producer"
COLUMNS = ("kind", "name", "epoch", "reached", "timestamp")
STATE = pa.schema([("kind", STRING), ("name", STRING), ("epoch", STRING), ("reached", INT64), ("timestamp", TIME)])
EMPTY = STATE.empty_table()


def state_path(segment: Path) -> Path:
    return segment.with_suffix(".state")


def save_state(segment: Path, shard: int, first: int, state: Any, disk: Disk) -> None:
    batch = pa.RecordBatch.from_arrays([_whole(column) for column in state.columns], schema=STATE)
    disk.replace(state_path(segment), frame_batch(batch, shard, first, 0))


def load_state(segment: Path, shard: int, first: int) -> Any:
    """The table, or None if there is none that can be believed."""
    try:
        with mapped(state_path(segment)) as data:
            frame = frame_at(data, 0)
            if frame is None or (frame.shard, frame.first) != (shard, first):
                return None
            message = bytes(data[: frame.length])
    except OSError:
        return None
    return pa.Table.from_batches([pa.ipc.read_record_batch(pa.py_buffer(message), STATE)])


def merge(before: Any, tables: Iterable[Any]) -> Any:
    """The state after the rows of these tables, which follow it in this order."""
    streams, producers = [_of(before, STREAM)], [_of(before, PRODUCER)]
    for table in tables:
        streams.append(_columns(STREAM, _published(table), "stream", "epoch", "offset"))
        producers.append(_columns(PRODUCER, table.filter(table["producer"].is_valid()), "producer", "epoch", "sequence"))
    return pa.concat_tables([_latest(streams), _latest(producers)])


def without_tips(state: Any) -> Any:
    return _of(state, PRODUCER)


def younger(state: Any, oldest: float) -> Any:
    """Without the streams that were not published to since; producers stay, an application may come back after weeks."""
    young = pc.greater_equal(state["timestamp"].cast(INT64), int(oldest * MICROSECONDS))
    return state.filter(pc.or_(young, pc.equal(state["kind"], PRODUCER)))


def tips_of(state: Any) -> list[StreamTip]:
    table = _of(state, STREAM)
    columns = [table[name].to_pylist() for name in ("name", "epoch", "reached")]
    times = table["timestamp"].cast(INT64).to_pylist()
    return [
        StreamTip(name, epoch, tip, at / MICROSECONDS)
        for (name, epoch, tip), at in zip(zip(*columns, strict=True), times, strict=True)
    ]


def producers_of(state: Any) -> dict[str, int]:
    table = _of(state, PRODUCER)
    return dict(zip(table["name"].to_pylist(), table["reached"].to_pylist(), strict=True))


def _published(table: Any) -> Any:
    return table.filter(pc.equal(table["event"], RowKind.PUBLISH.value))


def _of(state: Any, kind: str) -> Any:
    return state.filter(pc.equal(state["kind"], kind))


def _columns(kind: str, table: Any, name: str, epoch: str, reached: str) -> Any:
    kinds = pa.repeat(pa.scalar(kind, STRING), table.num_rows)
    return pa.Table.from_arrays([kinds, table[name], table[epoch], table[reached], table["timestamp"]], schema=STATE)


def _latest(tables: list[Any]) -> Any:
    """The last line of each name. One thread, because "last" is by order."""
    table = pa.concat_tables(tables)
    if table.num_rows == 0:
        return EMPTY
    latest = table.group_by("name", use_threads=False).aggregate([(column, "last") for column in COLUMNS if column != "name"])
    named = {"name": latest["name"], **{column: latest[f"{column}_last"] for column in COLUMNS if column != "name"}}
    return pa.Table.from_arrays([named[column] for column in COLUMNS], schema=STATE)


def _whole(column: Any) -> Any:
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
