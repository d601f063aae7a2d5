"""Reads what is in the journal and not yet in the archive: the end of one shard, filtered for one stream.

Invariant: the read is bounded. A longer tail is not read to its end, and the answer says that there is more.
"""

import asyncio
from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from ropewalk.adapters.archives.parquet_index import HistoryRange
from ropewalk.adapters.archives.rows import chosen, registered
from ropewalk.model.errors import BadRequest
from ropewalk.model.history import ColdPiece
from ropewalk.model.journal import oldest_kept
from ropewalk.model.messages import Registered
from ropewalk.ports import JournalReader

PIECE_BYTES = 4 << 20
TAIL_BYTES = 64 << 20
"""Bytes of the journal that one request may read. The archive follows within seconds, and then the tail is far shorter."""


def begins_after(journal: JournalReader, shard: int, position: int) -> bool:
    """Whether the journal has let go of what was at this position."""
    oldest = oldest_kept([span for span in journal.spans() if span.shard == shard])
    return oldest is not None and oldest.first > position


async def read_tail(journal: JournalReader, shard: int, begin: int, wanted: HistoryRange) -> ColdPiece:
    """Messages at positions from `begin` on, each once; holes of the journal are passed over, which is for the caller to
    notice. There may be none and still be `more`. Raises BadRequest where the journal has let go of them meanwhile."""
    found: list[Registered] = []
    budget, position, refused = TAIL_BYTES, begin, -1
    while not _complete(found, wanted):
        spans = [span for span in journal.spans() if span.shard == shard and span.end > max(position, span.first)]
        if not spans:
            break
        if budget <= 0:
            return ColdPiece(tuple(found), more=True)
        position = max(position, spans[0].first)
        data = b"".join([piece async for piece in journal.read(shard, position, spans[0].end, min(budget, PIECE_BYTES))])
        rows, reached = await asyncio.to_thread(_sift, data, position, wanted)
        found += _new(rows, found[-1].offset if found else 0)
        budget -= len(data)
        if reached == position == refused:
            raise BadRequest(f"the journal tells of position {position} in shard {shard} but does not give it")
        # Nothing came: damage was found just now, and the spans tell of it when they are asked again.
        refused = position if reached == position else -1
        position = reached
    return ColdPiece(tuple(found[: wanted.limit]), more=len(found) > wanted.limit)


def _complete(found: list[Registered], wanted: HistoryRange) -> bool:
    return bool(found) and (found[-1].offset >= wanted.last or len(found) > wanted.limit)


def _new(messages: Iterable[Registered], last: int) -> Iterator[Registered]:
    """Without those that came before: rows may have been handed to the journal twice."""
    for message in messages:
        if message.offset > last:
            last = message.offset
            yield message


def _sift(data: bytes, position: int, wanted: HistoryRange) -> tuple[list[Registered], int]:
    """The messages from `position` on, and the position after the last row; the same where there are no rows."""
    with pa.ipc.open_stream(data) as stream:
        rows = stream.read_all()
    rows = rows.filter(pc.greater_equal(rows["position"], position))  # it may begin earlier, with a whole batch
    if not rows.num_rows:
        return [], position
    messages = registered(chosen(rows, wanted.stream, wanted.epoch, wanted.first, wanted.last, wanted.since))
    return messages, rows["position"][-1].as_py() + 1
