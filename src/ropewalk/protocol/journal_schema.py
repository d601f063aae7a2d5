"""The columns of the journal as an Arrow schema: in its files, in responses to readers, and in the archive.

Invariant: every field is nullable, even if every row has a value, because Spark compares schemas exactly.
"""

import pyarrow as pa

from ropewalk.model.journal import COLUMNS, ColumnType

STRING = pa.string()
BINARY = pa.binary()
INT64 = pa.int64()
TIME = pa.timestamp("us", tz="UTC")

_TYPES = {ColumnType.TEXT: STRING, ColumnType.BYTES: BINARY, ColumnType.NUMBER: INT64, ColumnType.TIME: TIME}

SCHEMA = pa.schema([(column.name, _TYPES[column.type]) for column in COLUMNS])

_VIEWS = {pa.string_view(): STRING, pa.binary_view(): BINARY}


def without_views(schema: pa.Schema) -> pa.Schema:
    """For files rewritten by other tools, which store texts as views: Arrow has few functions for those."""
    return pa.schema([field.with_type(_VIEWS.get(field.type, field.type)) for field in schema])
