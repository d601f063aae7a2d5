"""The declared columns of the journal match the rows written by the server."""

import msgspec
import pytest

from ropewalk.model.journal import COLUMNS, ColumnType, Row, RowKind, decode_ts_producer, encode_publication_detail

PYTHON_TYPES = {ColumnType.TEXT: str, ColumnType.BYTES: bytes, ColumnType.NUMBER: int, ColumnType.TIME: float}


def test_row_has_a_field_of_the_right_type_for_each_column() -> None:
    declared = {column.name: PYTHON_TYPES[column.type] for column in COLUMNS if column.name not in ("position", "event")}
    fields = {field.name: field.type for field in msgspec.structs.fields(Row) if field.name != "kind"}

    assert fields == declared


def test_row_kinds_and_columns_are_documented() -> None:
    assert [kind for kind in RowKind if not kind.meaning] == []
    assert [column.name for column in COLUMNS if not column.meaning] == []


def test_row_kind_is_found_by_its_name() -> None:
    assert [RowKind(str(kind)) for kind in RowKind] == list(RowKind)


def test_producer_time_is_read_back_from_a_row(subtests: pytest.Subtests) -> None:
    rows: list[int] = [1, 2**64 - 1]
    for time in rows:
        with subtests.test(time=time):
            assert decode_ts_producer(encode_publication_detail(time)) == time


def test_row_without_a_producer_time_has_no_detail() -> None:
    assert encode_publication_detail(0) == ""
    assert decode_ts_producer("") == 0
