"""Arrow messages with a checksum: each carries a small record of itself.

Invariant: a message is complete and unchanged, or it is not used at all. The record is stored in the padding that Arrow
allows after a message's metadata, so that every Arrow reader sees a plain IPC stream.

    FF FF FF FF | size of metadata + record | metadata | record | body
"""

import re
import struct
from collections.abc import Iterator
from typing import Any
from zlib import crc32

from msgspec import Struct

from ropewalk.protocol.journal_schema import SCHEMA

HEAD = struct.Struct("<Ii")
RECORD = struct.Struct("<4sIQQqIIII")  # magic, length, first, group, newest, rows, members, shard, checksum
UNCHECKED = RECORD.size - 4
"""Bytes of a record before its checksum."""

CONTINUATION = 0xFFFFFFFF
END_OF_STREAM = HEAD.pack(CONTINUATION, 0)
OPENING = b"RwO1"
BATCH = b"RwB1"
MAGICS = (OPENING, BATCH)
LARGEST_METADATA = 1 << 20

_BEGINNING = re.compile(rb"\xff(?=\xff{3}..[\x00-\x10]\x00)", re.DOTALL)
"""How a message begins: the continuation mark, and a size of metadata that may be."""


class Frame(Struct, frozen=True, gc=False):
    """One message as its record describes it.

    `group` is the group commit it belongs to and `members` how many messages that group has; both are 0 in a message that was
    rewritten after its group was complete. `newest` is the latest time in it, in microseconds.
    """

    magic: bytes
    length: int
    first: int
    group: int
    newest: int
    rows: int
    members: int
    shard: int


def frame_batch(batch: Any, shard: int, first: int, newest: int, group: int = 0, members: int = 0) -> bytes:
    return _frame(batch.serialize(), BATCH, first, group, newest, batch.num_rows, members, shard)


def frame_opening(shard: int, epoch: str, first: int) -> bytes:
    """How a segment begins: the schema, and whose it is."""
    schema = SCHEMA.with_metadata({"ropewalk.shard": str(shard), "ropewalk.epoch": epoch})
    return _frame(schema.serialize(), OPENING, first, 0, 0, 0, 0, shard)


def _frame(message: Any, magic: bytes, first: int, group: int, newest: int, rows: int, members: int, shard: int) -> bytes:
    view = memoryview(message)
    _, metadata = HEAD.unpack_from(view)
    body_at = HEAD.size + metadata
    head = HEAD.pack(CONTINUATION, metadata + RECORD.size)
    length = len(view) + RECORD.size
    record = RECORD.pack(magic, length, first, group, newest, rows, members, shard, 0)[:UNCHECKED]
    before = b"".join((head, view[HEAD.size : body_at], record))
    checksum = crc32(view[body_at:], crc32(before))
    return b"".join((before, checksum.to_bytes(4, "little"), view[body_at:]))


def frame_at(data: memoryview, at: int) -> Frame | None:
    """The whole message that begins at `at`; None if there is none, or if one bit of it is not as it was written."""
    if at + HEAD.size > len(data):
        return None
    continuation, metadata = HEAD.unpack_from(data, at)
    if continuation != CONTINUATION or not RECORD.size <= metadata <= LARGEST_METADATA:
        return None
    body_at = at + HEAD.size + metadata
    if body_at > len(data):
        return None
    magic, length, first, group, newest, rows, members, shard, checksum = RECORD.unpack_from(data, body_at - RECORD.size)
    end = at + length
    if magic not in MAGICS or end > len(data) or end < body_at:
        return None
    if crc32(data[body_at:end], crc32(data[at : body_at - 4])) != checksum:
        return None
    return Frame(magic, length, first, group, newest, rows, members, shard)


def frames_after(data: memoryview, at: int) -> Iterator[tuple[int, Frame]]:
    """Whole messages that begin at `at` or later, wherever they lie, and their places: the way on behind bad bytes.

    Text cannot be taken for a message: no byte of UTF-8 is FF.
    """
    while (mark := _BEGINNING.search(data, at)) is not None:
        place = mark.start()
        del mark  # it holds on to the file's memory
        frame = frame_at(data, place)
        if frame is not None:
            yield place, frame
        at = place + 1
