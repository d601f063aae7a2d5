"""What tests of the journal share: rows, a disk that does not sync, a journal as if killed, and its rows read back."""

import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from ropewalk.adapters.journals.arrow import ArrowJournal
from ropewalk.adapters.journals.arrow.batches import decode
from ropewalk.adapters.journals.arrow.records import Disk
from ropewalk.core.ring import locate_shard
from ropewalk.model.journal import Recovered, Row, RowKind
from ropewalk.model.limits import JournalLimits
from ropewalk.ports import JournalReader
from ropewalk.testing.clock import ManualClock

EVER = 1e12
"""A horizon before which nothing can lie."""


class QuickDisk(Disk):
    """Does not sync: no test cuts the power. `boot` is the id of the boot that it reports."""

    boot = "this boot"

    def boot_id(self) -> str:
        return self.boot

    def sync(self, fd: int) -> None: ...


def made(directory: Path, clock: ManualClock, **options: Any) -> ArrowJournal:
    settings: dict[str, Any] = {"shards": 3, "durability": "journal", "disk": QuickDisk(), **options}
    settings["disk"].boot = settings.pop("boot", QuickDisk.boot)
    limits = JournalLimits(**{name: settings.pop(name) for name in JournalLimits.__struct_fields__ if name in settings})
    return ArrowJournal(directory, clock, limits, **settings)


@asynccontextmanager
async def running(
    directory: Path, clock: ManualClock, horizon: float = EVER, **options: Any
) -> AsyncIterator[tuple[ArrowJournal, Recovered]]:
    """A journal from open to an orderly stop. The rows it recovered are read before it starts."""
    journal = made(directory, clock, **options)
    recovered = journal.open(horizon)
    rows = list(recovered.rows)
    await journal.start()
    try:
        yield (
            journal,
            Recovered(
                recovered.shards,
                list(recovered.tips),
                rows,
                recovered.producers,
                recovered.newest,
                recovered.cut_bytes,
                recovered.reset_shards,
                recovered.notes,
            ),
        )
    finally:
        await journal.stop()


def as_if_killed(directory: Path, copy: Path) -> Path:
    """The files of a journal that runs, as a server killed at this moment would leave them."""
    shutil.copytree(directory, copy)
    return copy


def publication(stream: str, offset: int, value: bytes = b"", at: float = 1_000_000.0, **more: object) -> Row:
    row = Row(RowKind.PUBLISH, stream, at, stream, "epoch", offset, value or b"%s %d" % (stream.encode(), offset))
    return msgspec.structs.replace(row, **more)


def session(sid: str, at: float = 1_000_000.0, detail: str = "{}") -> Row:
    return Row(RowKind.CONNECTED, sid, at, sid=sid, detail=detail)


def by_shard(rows: Sequence[Row], shards: int = 3) -> list[list[Row]]:
    """Rows as they lie in their shards when they were handed over in this order."""
    placed: list[list[Row]] = [[] for _ in range(shards)]
    for row in rows:
        placed[locate_shard(row.key, shards)].append(row)
    return placed


async def table(journal: JournalReader, shard: int, first: int, end: int, max_bytes: int = 1 << 40) -> pa.Table:
    data = b"".join([piece async for piece in journal.read(shard, first, end, max_bytes)])
    return pa.ipc.open_stream(pa.py_buffer(data)).read_all()


async def read_back(journal: JournalReader, shard: int, first: int, end: int) -> dict[int, Row]:
    """Rows by position, as far as one answer reaches."""
    found = await table(journal, shard, first, end)
    rows = [row for batch in found.to_batches() for row in decode(batch, 0)]
    return dict(zip(found["position"].to_pylist(), rows, strict=True))


async def read_all(journal: JournalReader) -> dict[int, dict[int, Row]]:
    """Everything that the spans promise, by shard. What turns out bad on the way leaves the spans, so it is asked again."""
    everything: dict[int, dict[int, Row]] = {}
    for _ in range(100):
        spans = journal.spans()
        everything = {span.shard: {} for span in spans}
        for span in spans:
            everything[span.shard].update(await read_back(journal, span.shard, span.first, span.end))
        if all(set(range(span.first, span.end)) <= everything[span.shard].keys() for span in journal.spans()):
            return everything
    raise AssertionError("the journal goes on finding damage")
