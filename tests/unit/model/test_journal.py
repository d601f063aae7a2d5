"""The declaration of the journal's columns fits the rows that the server makes."""

import msgspec

from ropewalk.model.journal import COLUMNS, ColumnType, Row, RowKind

PYTHON_TYPES = {ColumnType.TEXT: str, ColumnType.BYTES: bytes, ColumnType.NUMBER: int, ColumnType.TIME: float}


def test_a_row_has_a_field_of_the_right_type_for_every_column_but_its_position() -> None:
    declared = {column.name: PYTHON_TYPES[column.type] for column in COLUMNS if column.name not in ("position", "event")}
    fields = {field.name: field.type for field in msgspec.structs.fields(Row) if field.name != "kind"}

    assert fields == declared


def test_every_kind_of_row_and_every_column_is_explained() -> None:
    assert [kind for kind in RowKind if not kind.meaning] == []
    assert [column.name for column in COLUMNS if not column.meaning] == []


def test_a_kind_is_found_by_its_name_alone() -> None:
    assert [RowKind(str(kind)) for kind in RowKind] == list(RowKind)
