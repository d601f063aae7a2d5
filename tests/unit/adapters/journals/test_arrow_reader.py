"""Reading: whole batches within bounds, beside the writer, and never a byte that is not as it was written."""

import asyncio
from pathlib import Path

import pytest

from ropewalk.model.errors import BadRequest
from ropewalk.testing.clock import ManualClock
from tests.journals import publication, read_all, read_back, running, table


async def test_a_range_inside_a_batch_brings_the_whole_batch(tmp_path: Path) -> None:
    async with running(tmp_path, ManualClock(), shards=1) as (journal, _):
        await journal.write([publication("a", offset) for offset in range(1, 11)])
        await journal.write([publication("a", offset) for offset in range(11, 21)])
        found = await table(journal, 0, 12, 13)
        assert found["position"].to_pylist() == list(range(10, 20))


async def test_reading_beside_the_writer_brings_each_position_once(tmp_path: Path) -> None:
    async with running(tmp_path, ManualClock(), shards=1, segment_size=60_000) as (journal, _):

        async def write() -> None:
            for offset in range(1, 301):
                await journal.write([publication("a", offset)])
            await journal.sweep()

        writing = asyncio.create_task(write())
        read: list[int] = []
        while not writing.done() or len(read) < 300:
            span = journal.spans()[0]
            found = (await table(journal, 0, len(read), span.end, 10_000))["offset"].to_pylist()
            read += [offset for offset in found if offset > len(read)]
            await asyncio.sleep(0)
        assert read == list(range(1, 301))


async def test_what_goes_bad_while_the_journal_runs_is_not_served_and_leaves_the_spans(tmp_path: Path) -> None:
    async with running(tmp_path, ManualClock(), shards=1) as (journal, _):
        for offset in range(1, 31):
            await journal.write([publication("a", offset)])
        (segment,) = tmp_path.rglob("*.arrow")
        data = bytearray(segment.read_bytes())
        data[data.index(b"a 12")] ^= 1
        segment.write_bytes(data)
        assert list(await read_back(journal, 0, 0, 30)) == list(range(11))
        assert [(span.first, span.end) for span in journal.spans()] == [(0, 11), (12, 30)]
        assert sorted((await read_all(journal))[0]) == [*range(11), *range(12, 30)]
        with pytest.raises(BadRequest):
            journal.read(0, 10, 13, 1000)
        assert journal.gauges()["journal_damaged_batches"] == 1


async def test_what_is_not_there_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    async with running(tmp_path, ManualClock(), shards=1) as (journal, _):
        with pytest.raises(BadRequest, match="not in shard 0"):
            journal.read(0, 0, 1, 1000)
