"""Rows for the journal: many streams, payloads of one size that hardly compress, handed over in large bodies.

The same rows go through every contender, so they are made once and read from the journal by all.
"""

import os
from collections.abc import Iterator, Sequence
from datetime import datetime

import pyarrow as pa

from benchmarks.server import Server
from ropewalk.pipeline.journal_client import JournalClient, ipc
from ropewalk.pipeline.options import Address
from ropewalk.protocol.journal_schema import SCHEMA

BODY_ROWS = 10_000
PRODUCER = "bench"
EPOCH = "epoch"


def server_url(server: Server) -> str:
    host, port = server.address
    return f"http://{host}:{port}"


def stream_names(count: int) -> list[str]:
    return [f"stream {number}" for number in range(count)]


def payloads(count: int, size: int) -> pa.Array:
    """JSON strings of random digits, each of `size` bytes."""
    data = bytearray(os.urandom(count * size // 2 + 1).hex().encode()[: count * size])
    data[0::size] = data[size - 1 :: size] = b'"' * count
    bounds = pa.array(range(0, (count + 1) * size, size), pa.int32()).buffers()[1]
    return pa.Array.from_buffers(pa.binary(), count, [None, bounds, pa.py_buffer(bytes(data))])


def archive_rows(streams: Sequence[str], offsets: Sequence[int], position: int, time: datetime, size: int) -> pa.Table:
    """Rows of one shard as the archive has them, at positions from `position` on."""
    count = len(streams)
    columns: dict[str, pa.Array] = {
        "position": pa.array(range(position, position + count)),
        "event": pa.repeat("publish", count),
        "stream": pa.array(streams),
        "epoch": pa.repeat(EPOCH, count),
        "offset": pa.array(offsets),
        "timestamp": pa.repeat(pa.scalar(time, pa.timestamp("us", tz="UTC")), count),
        "key": pa.array(streams),
        "value": payloads(count, size),
    }
    empty = {field.name: pa.nulls(count, field.type) for field in SCHEMA if field.name not in columns}
    return pa.table({field.name: (columns | empty)[field.name] for field in SCHEMA}, schema=SCHEMA)


def batches(count: int, size: int, streams: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Streams take turns."""
    for start in range(0, count, BODY_ROWS):
        rows = min(BODY_ROWS, count - start)
        names = pa.array([streams[(start + index) % len(streams)] for index in range(rows)], pa.string())
        yield pa.RecordBatch.from_pydict({"stream": names, "value": payloads(rows, size)})


def fill(server: Server, count: int, size: int, streams: int) -> None:
    """Register so many rows, and see that the journal has them."""
    client = JournalClient(Address(server_url(server)))
    done = 0
    for batch in batches(count, size, stream_names(streams)):
        client.produce(PRODUCER, done, ipc(batch))
        done += batch.num_rows
    if (found := journal_rows(server)) != count:
        raise AssertionError(f"{count} rows were published and the journal has {found}")


def journal_rows(server: Server) -> int:
    spans = JournalClient(Address(server_url(server))).spans()
    return sum(span.end - span.first for own in spans.values() for span in own)
