"""The stored form of staged rows, after validation: groups of publications, each small enough for one step of the broker.

It contains the publisher's fields only. The batch decides the producer and the sequence of a row.
"""

from collections.abc import Iterator, Sequence

import msgspec

from ropewalk.model.messages import Publication

GROUP_ROWS = 200
GROUP_BYTES = 256 * 1024
"""A group is registered and fanned out in one step. Bounds the delay of live traffic."""

_LENGTH_BYTES = 4

_Line = tuple[str, bytes, str, str, str]
_decoder = msgspec.msgpack.Decoder(list[_Line])
_encode = msgspec.msgpack.Encoder().encode


def in_groups(rows: Sequence[Publication]) -> Iterator[Sequence[Publication]]:
    start = size = 0
    for index, row in enumerate(rows):
        if index > start and (index - start >= GROUP_ROWS or size + len(row.payload) > GROUP_BYTES):
            yield rows[start:index]
            start, size = index, 0
        size += len(row.payload)
    if start < len(rows):
        yield rows[start:]


def encode_group(rows: Sequence[Publication]) -> bytes:
    lines = [(row.stream, row.payload, row.exclude_socket, row.broadcast_type, row.uid) for row in rows]
    body = _encode(lines)
    return len(body).to_bytes(_LENGTH_BYTES, "little") + body


def groups_of(data: bytes, producer: str, first: int) -> Iterator[list[Publication]]:
    """The groups of a piece, in order. `first` is the sequence of its first row. The data must be undamaged."""
    view, at = memoryview(data), 0
    while at < len(data):
        start = at + _LENGTH_BYTES
        at = start + int.from_bytes(view[at:start], "little")
        lines = _decoder.decode(view[start:at])
        yield [_publication(line, producer, first + index) for index, line in enumerate(lines)]
        first += len(lines)


def _publication(line: _Line, producer: str, sequence: int) -> Publication:
    stream, payload, exclude_socket, broadcast_type, uid = line
    return Publication(stream, payload, exclude_socket, broadcast_type, False, uid, producer, sequence)
