"""The archive's Delta log, written by delta-rs without a JVM: appending exactly once, replacing, and how far the archive is.

Invariant: whoever commits says whose turn it was, in an application transaction. Two that commit at once from the same
state share one, so that the second fails instead of doing the work twice.
"""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, Schema
from deltalake.transaction import AddAction, CommitProperties, RemoveAction, Transaction, create_table_with_add_actions

from ropewalk.model.errors import UserMistake
from ropewalk.model.journal import GENERATION_SIZE, ShardSpan
from ropewalk.pipeline.archive.layout import PARTITIONS, TABLE, Written
from ropewalk.pipeline.offsets import Spans

APPENDING = "ropewalk.archive"
COMPACTING = "ropewalk.compact"
ARCHIVED = "ropewalk.archived"
"""Custom metadata of a commit: the archived position of every shard, as JSON."""

HELD = "ropewalk.held"
"""Custom metadata of a commit: what the archive must hold, as JSON: the extents of all generations of all shards. Each
append carries it on, so that rows which leave the table in any other way are missed."""

_LOOK_BACK = 1000
"""Commits among which the last of ours is looked for; others may have been made by other tools."""

_SCHEMA = Schema.from_arrow(TABLE)


class Extent(NamedTuple):
    """What the archive holds of one generation of a shard: first and last position, and of how many it has a row or a word."""

    shard: int
    generation: int
    first: int
    last: int
    rows: int

    @property
    def dense(self) -> bool:
        return self.rows == self.last + 1 - self.first


def opened(root: str) -> DeltaTable | None:
    return DeltaTable(root) if DeltaTable.is_deltatable(root) else None


def archived_positions(root: str, journal: Spans | None = None) -> dict[int, int]:
    """By shard: everything from where the archive begins up to below this position can be read back from it.

    Positions of a generation are dense, so counting proves it; what the journal had lost, and a row here tells of, counts
    too. A shard with a hole, as a query that selects streams leaves it, is not named; neither is what lies in or behind
    files that are missing or cut short. A newer generation counts only if the archive has the older ones to the ends that
    `journal` tells.
    """
    table = opened(root)
    if table is None:
        return {}
    unreadable = _unreadable(table, root)
    by_shard: dict[int, list[Extent]] = {}
    for extent in sorted(held(table)):
        by_shard.setdefault(extent.shard, []).append(extent)
    found = {shard: _claimed(own, (journal or {}).get(shard, ()), unreadable.get(shard, [])) for shard, own in by_shard.items()}
    return {shard: end for shard, end in found.items() if end is not None}


def archive_ends(root: str) -> dict[int, int]:
    """By shard, where the archive goes on; what lies below is refused. Empty where nothing is archived."""
    table = opened(root)
    return {} if table is None else _ends(held(table))


def _claimed(archived: Sequence[Extent], journal: Sequence[ShardSpan], unreadable: Sequence[int]) -> int | None:
    claimed: int | None = None
    for extent in archived:
        begins = claimed is None or extent.first % GENERATION_SIZE == 0
        older = [span for span in journal if span.first // GENERATION_SIZE < extent.generation and span.first < span.end]
        if not (extent.dense and begins and all(_covered(span, archived) for span in older)):
            break
        lost = min((first for first in unreadable if extent.first <= first <= extent.last), default=None)
        if lost is not None:
            return lost if lost > extent.first else claimed
        claimed = extent.last + 1
    return claimed


def _covered(span: ShardSpan, archived: Sequence[Extent]) -> bool:
    return any(extent.generation == span.first // GENERATION_SIZE and extent.last + 1 >= span.end for extent in archived)


def append(root: str, app: str, batch: int, files: Sequence[Written]) -> bool:
    """Make the files of one batch visible, all at once. False, and nothing done, for a batch that was committed before."""
    table = opened(root)
    if table is None:
        _create(root, app, batch, files)
        return True
    committed = table.transaction_version(app)
    if committed is not None and committed >= batch:
        return False
    before = held(table)
    _refuse_overlap(_ends(before), files)
    table.create_write_transaction(
        [_add(file, data_change=True) for file in files],
        "append",
        _SCHEMA,
        list(PARTITIONS),
        commit_properties=_properties(app, batch, _turn(table, APPENDING), _with(before, files)),
    )
    return True


def held(table: DeltaTable) -> list[Extent]:
    """What the archive must hold, by what its commits say; of a table from before they said it, what it holds."""
    commits = (commit for limit in (1, _LOOK_BACK) for commit in table.history(limit))
    told = next((commit[HELD] for commit in commits if HELD in commit), None)
    return msgspec.json.decode(told, type=list[Extent]) if told else _extents(add_actions(table))


def reached(table: DeltaTable) -> dict[int, int]:
    """By shard, the end of what the archive must hold."""
    return _ends(held(table))


def replace(table: DeltaTable, old: Sequence[str], date: str, shard: int, new: Written) -> None:
    """One file for many with the same rows. Raises CommitFailedError if another compaction came first.

    It says nothing of what the archive holds: batches may have been appended since `table` was opened, and it would take back
    what they said.
    """
    now = milliseconds()
    values: dict[str, str | None] = {"date": date, "shard": str(shard)}
    removed = [RemoveAction(path, False, now, None, values) for path in old]
    turn = Transaction(COMPACTING, _turn(table, COMPACTING))
    table.create_write_transaction(
        [_add(new, data_change=False), *removed],
        "append",
        _SCHEMA,
        list(PARTITIONS),
        commit_properties=CommitProperties(app_transactions=[turn]),
    )


def add_actions(table: DeltaTable) -> pa.Table:
    return pa.table(table.get_add_actions(flatten=True))


def _create(root: str, app: str, batch: int, files: Sequence[Written]) -> None:
    Path(root).mkdir(parents=True, exist_ok=True)
    create_table_with_add_actions(
        root,
        _SCHEMA,
        [_add(file, data_change=True) for file in files],
        mode="error",
        partition_by=list(PARTITIONS),
        commit_properties=_properties(app, batch, 0, _with([], files)),
    )


def _properties(app: str, batch: int, turn: int, after: Sequence[Extent]) -> CommitProperties:
    transactions = [Transaction(app, batch), Transaction(APPENDING, turn)]
    return CommitProperties(custom_metadata=_metadata(after), app_transactions=transactions)


def _metadata(extents: Sequence[Extent]) -> dict[str, str]:
    ends = {str(shard): end for shard, end in sorted(_ends(extents).items())}
    return {ARCHIVED: msgspec.json.encode(ends).decode(), HELD: msgspec.json.encode(extents).decode()}


def _turn(table: DeltaTable, kind: str) -> int:
    last = table.transaction_version(kind)
    return 0 if last is None else last + 1


def _add(file: Written, data_change: bool) -> AddAction:
    return AddAction(file.path, file.size, file.values, milliseconds(), data_change, file.stats)


def milliseconds() -> int:
    return time.time_ns() // 1_000_000


def _unreadable(table: DeltaTable, root: str) -> dict[int, list[int]]:
    """By shard, the first positions of the files that are not there in their full length."""
    files = add_actions(table)
    found: dict[int, list[int]] = {}
    for path, size, shard, first in zip(
        *(files[name].to_pylist() for name in ("path", "size_bytes", "partition.shard", "min.position")), strict=True
    ):
        if _size(Path(root) / path) != size:
            found.setdefault(shard, []).append(first)
    return found


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1


def _ends(extents: Sequence[Extent]) -> dict[int, int]:
    return {extent.shard: extent.last + 1 for extent in sorted(extents)}


def _extents(files: pa.Table) -> list[Extent]:
    if not files.num_rows:
        return []
    generation = pc.divide(files["min.position"], GENERATION_SIZE)
    groups = files.append_column("generation", generation).group_by(["partition.shard", "generation"], use_threads=False)
    found = groups.aggregate([("min.position", "min"), ("max.position", "max"), ("num_records", "sum")])
    columns = ("partition.shard", "generation", "min.position_min", "max.position_max", "num_records_sum")
    return [Extent(*row) for row in zip(*(found[name].to_pylist() for name in columns), strict=True)]


def _with(before: Sequence[Extent], files: Sequence[Written]) -> list[Extent]:
    after = {(extent.shard, extent.generation): extent for extent in before}
    for file in files:
        new = Extent(file.shard, file.first // GENERATION_SIZE, file.first, file.last, file.positions)
        key = (new.shard, new.generation)
        old = after.get(key)
        after[key] = (
            new if old is None else Extent(*key, min(old.first, new.first), max(old.last, new.last), old.rows + new.rows)
        )
    return sorted(after.values())


def _refuse_overlap(archived: Mapping[int, int], files: Sequence[Written]) -> None:
    """A query without its checkpoint would archive everything again, and one of another journal would mix two pasts."""
    for file in files:
        end = archived.get(file.shard, 0)
        if file.first < end:
            raise UserMistake(
                f"position {file.first} of shard {file.shard} is below what is archived already ({end}): the query lost its "
                "checkpoint (begin where the archive ends: starting=archive for the job, startingOffsets for a query of your "
                "own) or reads another journal (which needs another path)"
            )
