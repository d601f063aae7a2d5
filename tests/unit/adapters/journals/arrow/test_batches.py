"""The bytes of the journal: columns, types and messages equal those of earlier versions."""

from pathlib import Path

import pyarrow as pa
import pytest

from ropewalk.adapters.journals.arrow.batches import decode, encode, frame_batch, frame_opening
from ropewalk.model.journal import COLUMNS, Row, RowKind
from ropewalk.protocol.journal_schema import SCHEMA

SEGMENT = Path(__file__).parents[4] / "fixtures" / "journal_segment.arrow"
"""ROWS as an earlier version wrote them: the opening, a message for each row, and one for all of them."""

ROWS = [
    Row(RowKind.PUBLISH, "chat", 1001.25, "chat", "e1", 1, b'{"n":1}'),
    Row(RowKind.PUBLISH, "chat", 1001.5, "chat", "e1", 2, b"", uid="u", exclude_socket="s", broadcast_type="t"),
    Row(RowKind.PUBLISH, "other key", 1002.000001, "ключ", "e2", 1, bytes(range(256)), producer="app", sequence=5 << 32 | 7),
    Row(RowKind.PUBLISH, "chat", 1003.0, "chat", "e1", 3, b"3", producer="app", sequence=0),
    Row(RowKind.CONNECTED, "sid", 1003.5, sid="sid"),
    *(Row(kind, "sid", 1004.0, "chat", sid="sid", detail="{}") for kind in RowKind if kind is not RowKind.PUBLISH),
]


def test_schema_has_not_changed() -> None:
    time = pa.timestamp("us", tz="UTC")
    literal = pa.schema(
        [
            pa.field("position", pa.int64(), nullable=True),
            pa.field("event", pa.string(), nullable=True),
            pa.field("stream", pa.string(), nullable=True),
            pa.field("epoch", pa.string(), nullable=True),
            pa.field("offset", pa.int64(), nullable=True),
            pa.field("timestamp", time, nullable=True),
            pa.field("key", pa.string(), nullable=True),
            pa.field("value", pa.binary(), nullable=True),
            pa.field("uid", pa.string(), nullable=True),
            pa.field("exclude_socket", pa.string(), nullable=True),
            pa.field("broadcast_type", pa.string(), nullable=True),
            pa.field("sid", pa.string(), nullable=True),
            pa.field("detail", pa.string(), nullable=True),
            pa.field("producer", pa.string(), nullable=True),
            pa.field("sequence", pa.int64(), nullable=True),
        ]
    )
    assert SCHEMA.equals(literal, check_metadata=True)


def test_rows_are_encoded_byte_for_byte_as_in_earlier_versions() -> None:
    assert segment() == SEGMENT.read_bytes()


def test_rows_of_earlier_versions_are_decoded() -> None:
    with pa.ipc.open_stream(SEGMENT) as reader:
        batches = list(reader)
    assert [row for batch in batches[:-1] for row in decode(batch, 0)] == ROWS
    assert list(decode(batches[-1], 0)) == ROWS


def test_required_columns_are_never_null(subtests: pytest.Subtests) -> None:
    for column in [column.name for column in COLUMNS if column.required]:
        with subtests.test(column=column):
            assert encode(ROWS, 0)[0].column(column).null_count == 0


def test_optional_columns_are_null_in_rows_without_a_value(subtests: pytest.Subtests) -> None:
    for column in [column.name for column in COLUMNS if not column.required]:
        with subtests.test(column=column):
            assert encode(ROWS, 0)[0].column(column).null_count > 0


def segment() -> bytes:
    messages = [frame_opening(1, "generation", 7)]
    messages += [frame_batch(encode([row], 7 + at)[0], 1, 7 + at, 0) for at, row in enumerate(ROWS)]
    return b"".join([*messages, frame_batch(encode(ROWS, 7)[0], 1, 7, 0, group=3, members=1)])
