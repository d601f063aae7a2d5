"""The archive's Delta log, written by delta-rs without a JVM: appends exactly once, replaces files, and lists the rows that the
archive must have.

Invariant: each commit has an application transaction with the version it is based on. Two concurrent commits from the same
version share it, so the second fails instead of repeating the work.
"""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import pyarrow as pa
from deltalake import DeltaTable, Schema
from deltalake.transaction import AddAction, CommitProperties, RemoveAction, Transaction, create_table_with_add_actions

from ropewalk.model.errors import UserMistake
from ropewalk.model.journal import GENERATION_SIZE
from ropewalk.pipeline.archive.layout import PARTITIONS, TABLE, Written
from ropewalk.pipeline.tiered import archive_files

APPENDING = "ropewalk.archive"
COMPACTING = "ropewalk.compact"
RESTORING = "ropewalk.restore"
ARCHIVED = "ropewalk.archived"
"""Custom metadata of a commit: the archived position of every shard, as JSON."""

HELD = "ropewalk.held"
"""Custom metadata of a commit: what the archive must hold, as JSON: the extents of all generations of all shards. Each
append carries it on, so that rows which leave the table in any other way are missed."""

_LOOK_BACK = (1, 1000, None)
"""Commits among which the last append is looked for; there may be any number of others after it. None: all."""

_SCHEMA = Schema.from_arrow(TABLE)


class Extent(NamedTuple):
    """The archived positions of one generation of a shard: the first and the last."""

    shard: int
    generation: int
    first: int
    last: int


def opened(root: str) -> DeltaTable | None:
    return DeltaTable(root) if DeltaTable.is_deltatable(root) else None


def archive_ends(root: str) -> dict[int, int]:
    """By shard, where the archive goes on; what lies below is refused. Empty where nothing is archived."""
    table = opened(root)
    return {} if table is None else _ends(held(table))


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


def next_restore(table: DeltaTable) -> int:
    """The number of the next `restore`, for the names of its files."""
    return _turn(table, RESTORING)


def restore(table: DeltaTable, files: Sequence[Written]) -> None:
    """Add files with rows that the archive must have and that no other file has. Raises CommitFailedError if something was
    appended or restored since `table` was opened."""
    table.create_write_transaction(
        [_add(file, data_change=True) for file in files],
        "append",
        _SCHEMA,
        list(PARTITIONS),
        commit_properties=_properties(RESTORING, next_restore(table), _turn(table, APPENDING), held(table)),
    )


def held(table: DeltaTable) -> list[Extent]:
    """The rows that the archive must have, according to its commits. For a table of an older version, the rows it has."""
    commits = (commit for limit in _LOOK_BACK for commit in table.history(limit))
    recorded = next((commit[HELD] for commit in commits if HELD in commit), None)
    if not recorded:
        return sorted(_extents(table))
    # Older versions added a number of rows.
    extents = [Extent(*each[:4]) for each in msgspec.json.decode(recorded, type=list[list[int]])]
    return sorted(extents)


def reached(table: DeltaTable) -> dict[int, int]:
    """By shard, the end of the rows that the archive must have."""
    return _ends(held(table))


def replace(table: DeltaTable, old: Sequence[str], date: str, shard: int, new: Written) -> None:
    """Replace files by one with the same rows. Raises CommitFailedError if another compaction came first.

    The commit does not list the rows of the archive: batches may have been appended since `table` was opened, and their entry
    must stay the latest.
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


def _ends(extents: Sequence[Extent]) -> dict[int, int]:
    return {extent.shard: extent.last + 1 for extent in sorted(extents)}


def _extents(table: DeltaTable) -> list[Extent]:
    found: dict[tuple[int, int], Extent] = {}
    for file in archive_files(table):
        if file.rows:
            _extend(found, file.shard, file.first, file.end - 1)
    return list(found.values())


def _with(before: Sequence[Extent], files: Sequence[Written]) -> list[Extent]:
    after = {(extent.shard, extent.generation): extent for extent in before}
    for file in files:
        _extend(after, file.shard, file.first, file.last)
    return sorted(after.values())


def _extend(extents: dict[tuple[int, int], Extent], shard: int, first: int, last: int) -> None:
    key = (shard, first // GENERATION_SIZE)
    known = extents.get(key, Extent(*key, first, last))
    extents[key] = Extent(*key, min(known.first, first), max(known.last, last))


def _refuse_overlap(archived: Mapping[int, int], files: Sequence[Written]) -> None:
    """A query without its checkpoint would archive everything again, and one of another journal would mix two pasts."""
    for file in files:
        end = archived.get(file.shard, 0)
        if file.first < end:
            raise UserMistake(
                f"position {file.first} of shard {file.shard} is below the end of the archive ({end}): the query lost its "
                "checkpoint (begin where the archive ends: starting=archive for the job, startingOffsets for a query of your "
                "own) or reads another journal (which needs another path)"
            )
