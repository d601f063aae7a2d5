"""What the journal has and the archive has not yet: the end of one shard, read as Arrow and sifted for one stream.

The rule it keeps: bounded. A tail longer than its bound is not read to its end, and the answer is as short as that makes it.
"""

import asyncio

import pyarrow as pa

from ropewalk.adapters.archives.rows import chosen, registered
from ropewalk.adapters.archives.shelf import Wanted
from ropewalk.model.messages import Registered
from ropewalk.ports import JournalReader

PIECE_BYTES = 4 << 20
TAIL_BYTES = 64 << 20
"""Bytes of the journal that one request may read. The archive follows within seconds, and then the tail is far shorter."""


async def read_tail(journal: JournalReader, shard: int, begin: int, wanted: Wanted) -> list[Registered]:
    """Messages at positions from `begin` on. Raises BadRequest where the journal has let go of them meanwhile."""
    found: list[Registered] = []
    budget = TAIL_BYTES
    for span in journal.spans():
        position = max(begin, span.first)
        while span.shard == shard and position < span.end and budget > 0 and not _complete(found, wanted):
            pieces = [piece async for piece in journal.read(shard, position, span.end, min(budget, PIECE_BYTES))]
            data = b"".join(pieces)
            rows, following = await asyncio.to_thread(_sift, data, wanted)
            if following <= position:
                break
            found += rows
            position, budget = following, budget - len(data)
    return found[: wanted.limit]


def _complete(found: list[Registered], wanted: Wanted) -> bool:
    return bool(found) and (found[-1].offset >= wanted.last or len(found) >= wanted.limit)


def _sift(data: bytes, wanted: Wanted) -> tuple[list[Registered], int]:
    """The messages, and the position after the last row."""
    if not data:
        return [], 0
    with pa.ipc.open_stream(data) as stream:
        rows = stream.read_all()
    if not rows.num_rows:
        return [], 0
    messages = registered(chosen(rows, wanted.stream, wanted.epoch, wanted.first, wanted.last, wanted.since))
    return messages, rows["position"][-1].as_py() + 1
