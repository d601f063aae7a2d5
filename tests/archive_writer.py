"""An archive as the sink leaves it, written without Spark: journal rows by shard, batch after batch."""

import json
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ropewalk.core.ring import locate_shard
from ropewalk.model.journal import GENERATION_SIZE, RowKind, encode_publication_detail
from ropewalk.model.messages import MessageFields, Registered
from ropewalk.pipeline.archive import archived_positions
from ropewalk.pipeline.archive.layout import ROW_GROUP, partitioned, write_file
from ropewalk.pipeline.archive.log import append
from ropewalk.protocol.journal_schema import SCHEMA
from tests.server import RunningServer

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
START = datetime(2026, 3, 1, 23, 59, tzinfo=UTC)


def message(stream: str, offset: int, epoch: str = "e", second: float = 0.0, payload: bytes | None = None) -> Registered:
    moment = (START + timedelta(seconds=second)).timestamp()
    return Registered(stream, b'"%s %d"' % (stream.encode(), offset) if payload is None else payload, moment, epoch, offset)


class Scribe:
    """Gives rows their positions, as the journal does, and archives them. `key_of`: a stream's partition key."""

    def __init__(
        self, root: Path, shards: int = 2, row_group: int = ROW_GROUP, key_of: Callable[[str], str] = lambda stream: stream
    ) -> None:
        self.root = root
        self.shards = shards
        self._row_group = row_group
        self._key_of = key_of
        self._positions: dict[int, int] = defaultdict(int)
        self._batch = 0

    def rows(self, messages: Sequence[Registered], joined: Sequence[tuple[str, str]] = ()) -> pa.Table:
        """Rows as the Spark source gives them. `joined`: pairs of stream and sid, rows that are no messages."""
        rows = [self._row(self._key_of(each.stream), RowKind.PUBLISH, each.timestamp, **_cells(each)) for each in messages]
        rows += [self._row(sid, RowKind.JOINED, START.timestamp(), stream=stream, sid=sid) for stream, sid in joined]
        return pa.Table.from_pylist(rows, schema=pa.schema([*SCHEMA, ("shard", pa.int32())]))

    def archive(self, messages: Sequence[Registered], joined: Sequence[tuple[str, str]] = ()) -> None:
        """One batch."""
        parts = list(partitioned(self.rows(messages, joined)))
        name = f"query-{self._batch}-0-0-{self._batch:08x}"
        files = [write_file(self.root, date, shard, name, rows, self._row_group) for date, shard, rows in parts]
        assert not files or append(str(self.root), "query", self._batch, files)
        self._batch += 1

    def begin_generation(self, shard: int = 0) -> None:
        """As a shard does that lost something."""
        self._positions[shard] = (self._positions[shard] // GENERATION_SIZE + 1) * GENERATION_SIZE

    def _row(self, key: str, kind: RowKind, timestamp: float, **cells: object) -> dict[str, object]:
        shard = locate_shard(key, self.shards)
        position = self._positions[shard]
        self._positions[shard] += 1
        moment = EPOCH + timedelta(microseconds=round(timestamp * 1e6))
        return {"position": position, "event": kind, "key": key, "timestamp": moment, "shard": shard, **cells}


def cut_file(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def empty_file(path: Path) -> None:
    path.write_bytes(b"")


def flip_payload(path: Path) -> None:
    """The file gets one payload that is another, in a good Parquet file of the same name, with the same rows otherwise."""
    rows = pq.read_table(path, partitioning=None)
    values = [b'"forged"', *rows["value"].to_pylist()[1:]]
    pq.write_table(rows.set_column(rows.schema.get_field_index("value"), rows.schema.field("value"), [values]), path)


def _cells(each: Registered) -> dict[str, object]:
    place: dict[str, object] = {"stream": each.stream, "epoch": each.epoch, "offset": each.offset, "value": each.payload}
    fields = each.fields or MessageFields()
    told = {"uid": fields.uid or None, "detail": encode_publication_detail(fields.ts_producer) or None}
    return {**place, **told, "exclude_socket": each.exclude_socket or None, "broadcast_type": each.broadcast_type or None}


def archive_journal(server: RunningServer, root: Path) -> int:
    """Everything that the server's journal has and the archive has not, in one batch; returns how many rows."""
    archived = archived_positions(str(root))
    with urllib.request.urlopen(f"{server.url}/journal") as answer:
        spans = json.load(answer)["spans"]
    parts = [_journal_rows(server, span["shard"], archived.get(span["shard"], 0), span["end"]) for span in spans]
    rows = pa.concat_tables([part for part in parts if part is not None])
    files = [write_file(root, date, shard, f"rows-{id(rows)}", part) for date, shard, part in partitioned(rows)]
    assert append(str(root), f"test {sum(archived.values())}", 0, files)
    return len(rows)


def _journal_rows(server: RunningServer, shard: int, first: int, end: int) -> pa.Table | None:
    if first == end:
        return None
    with urllib.request.urlopen(f"{server.url}/journal/{shard}?from={first}&to={end}") as answer:
        rows = pa.ipc.open_stream(answer.read()).read_all()
    inside = pc.and_(pc.greater_equal(rows["position"], first), pc.less(rows["position"], end))
    chosen = rows.filter(inside)
    assert len(chosen) == end - first
    return chosen.append_column("shard", pa.array([shard] * len(chosen), pa.int32()))
