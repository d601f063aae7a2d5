"""Segments are plain Arrow IPC streams."""

from pathlib import Path

import pyarrow as pa

from ropewalk.testing.clock import ManualClock
from tests.journals import publication, running


async def test_segment_is_a_plain_arrow_stream(tmp_path: Path) -> None:
    async with running(tmp_path, ManualClock(), shards=1) as (journal, _):
        await journal.write([publication("a", 1)])
        await journal.write([publication("a", 2)])
        [segment] = tmp_path.rglob("*.arrow")
        with pa.OSFile(str(segment)) as file:
            table = pa.ipc.open_stream(file).read_all()
        assert table["offset"].to_pylist() == [1, 2]
        assert table.schema.metadata[b"ropewalk.epoch"].decode() == journal.spans()[0].epoch
