"""The archive's layout: columns, directories, and how one Parquet file is written and described.

Invariant: a file holds rows of one date and one generation of a shard, sorted by (stream, offset, position), in small
row groups.
"""

from collections.abc import Iterator
from functools import reduce
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec import Struct

from ropewalk.core.digests import digest
from ropewalk.model.errors import UserMistake
from ropewalk.model.journal import GENERATION_SIZE
from ropewalk.pipeline.rows import GAP
from ropewalk.protocol.journal_schema import SCHEMA

ROW_GROUP = 4096
"""Rows. Decoding one row group is what a cold read costs, and files hardly grow with small ones."""

GROUP_BYTES = 8 << 20
"""Of large payloads a row group holds fewer, so that reading one is never a matter of hundreds of megabytes."""

PARTITIONS = ("date", "shard")
TIMELESS = "1970-01-01"
TABLE = pa.schema([*SCHEMA, pa.field("date", pa.string()), pa.field("shard", pa.int32())])
"""What a reader of the table sees. Files hold the columns of the journal; directories are named by the other two."""

_ORDER = ("stream", "offset", "position")
_PACKED = ("position", "offset", "timestamp", "sequence")
_DESCRIBED = ("position", "stream", "offset", "timestamp")  # the columns with minimum and maximum in the commit
_SHARD_NAMES = ("shard", "partition")  # the journal's word, and Kafka's for the same thing


class _Loss(Struct):
    first: int
    end: int


class Written(Struct, frozen=True):
    """One file as a commit names it: `path` is relative to the table, `stats` is the Delta log's JSON.

    Its positions lie between `first` and `last`: those of its rows, and those that rows of event `gap` stand for.
    """

    path: str
    size: int
    date: str
    shard: int
    first: int
    last: int
    stats: str

    @property
    def values(self) -> dict[str, str | None]:
        return {"date": self.date, "shard": str(self.shard)}


def directory(date: str, shard: int) -> str:
    return f"date={date}/shard={shard:02d}"


def partitioned(rows: pa.Table) -> Iterator[tuple[str, int, pa.Table]]:
    """The rows by date (of their time, in UTC), shard and generation, each part with the columns of a file.

    Raises UserMistake.
    """
    shards, body = _shard_column(rows), _body(rows)
    keys = pa.table(
        {"date": _dates(body["timestamp"]), "shard": shards, "generation": pc.divide(body["position"], GENERATION_SIZE)}
    )
    parts = keys.group_by(keys.column_names).aggregate([]).to_pylist()
    for part in parts:
        mine = reduce(pc.and_, (pc.equal(keys[name], value) for name, value in part.items()))
        # a task has mostly one shard of one day, and copying all of it would cost as much as writing it
        yield part["date"].isoformat(), part["shard"], body if len(parts) == 1 else body.filter(mine)


def write_file(root: Path, date: str, shard: int, name: str, rows: pa.Table, row_group: int = ROW_GROUP) -> Written:
    """Sort, write and describe one file. Its name must be new: readers may have an older file of that name open."""
    ordered = rows.sort_by([(name, "ascending") for name in _ORDER])
    first, last = _extremes(ordered["position"])
    # Two generations of a shard may come in one batch, and their files would have the same name.
    generation = f".g{first // GENERATION_SIZE}" if first >= GENERATION_SIZE else ""
    where = root / directory(date, shard)
    where.mkdir(parents=True, exist_ok=True)
    place = where / f"{name}{generation}.parquet"
    pq.write_table(
        ordered,
        place,
        compression="zstd",
        row_group_size=_fitting(row_group, ordered),
        use_dictionary=["event", "stream", "epoch", "broadcast_type"],
        column_encoding=dict.fromkeys(_PACKED, "DELTA_BINARY_PACKED"),
        sorting_columns=[pq.SortingColumn(SCHEMA.get_field_index(name)) for name in _ORDER],
        write_page_index=True,
    )
    # The digest in the name stays as long as the table names the file, so that an audit finds every change in it.
    final = named_by_content(place)
    path = f"{directory(date, shard)}/{final.name}"
    end = max([last + 1, *(end for _, end in losses(ordered))])
    return Written(path, final.stat().st_size, date, shard, first, end - 1, _stats(ordered))


def losses(rows: pa.Table) -> list[tuple[int, int]]:
    """The ranges [first, end) of lost positions, from the rows of event `gap`."""
    details = rows.filter(pc.equal(rows["event"], GAP))["detail"].to_pylist()
    found = [msgspec.json.decode(detail, type=_Loss) for detail in details]
    return [(loss.first, max(loss.end, loss.first)) for loss in found]


def named_by_content(place: Path) -> Path:
    """The file under a name with its digest."""
    with place.open("rb") as file:
        final = place.with_name(f"{place.stem}.{digest(file)}.parquet")
    return place.rename(final)


def _fitting(row_group: int, rows: pa.Table) -> int:
    average = int(rows.nbytes) // max(1, len(rows)) + 1
    return max(1, min(row_group, GROUP_BYTES // average))


def _dates(times: pa.ChunkedArray) -> pa.ChunkedArray:
    """A row that stands for lost ones has no time; it is put with the oldest of its neighbours."""
    # as days, not as text: a text for every row takes longer than sorting them
    dates = times.cast(pa.date32())
    oldest = pc.min(dates)
    return pc.fill_null(dates, oldest if oldest.is_valid else pa.scalar(0, pa.date32())) if dates.null_count else dates


def _shard_column(rows: pa.Table) -> pa.ChunkedArray:
    for name in _SHARD_NAMES:
        if name in rows.column_names:
            return rows[name].cast(pa.int32())
    raise UserMistake("the archive needs the column shard (or partition): which shard of the journal a row comes from")


def _body(rows: pa.Table) -> pa.Table:
    missing = [name for name in SCHEMA.names if name not in rows.column_names]
    if missing:
        raise UserMistake(
            f"the archive needs the journal's columns (option columns=journal at the source); missing: {', '.join(missing)}"
        )
    return rows.select(SCHEMA.names).cast(SCHEMA)


def _extremes(column: pa.ChunkedArray) -> tuple[int, int]:
    both = pc.min_max(column).as_py()
    return both["min"], both["max"]


def _stats(rows: pa.Table) -> str:
    extremes = {name: pc.min_max(rows[name]) for name in _DESCRIBED if rows[name].null_count < len(rows)}
    stats = {
        "numRecords": len(rows),
        "minValues": {name: _plain_value(both["min"]) for name, both in extremes.items()},
        "maxValues": {name: _plain_value(both["max"]) for name, both in extremes.items()},
        "nullCount": {name: rows[name].null_count for name in SCHEMA.names},
    }
    return msgspec.json.encode(stats).decode()


def _plain_value(value: pa.Scalar) -> object:
    if pa.types.is_timestamp(value.type):
        return pc.strftime(value, "%Y-%m-%dT%H:%M:%SZ").as_py()  # %S has the microseconds
    return value.as_py()
