"""The columns of the journal as an Arrow schema: in its files, in what it answers to readers, and in the archive.

Invariant: every field is nullable, also where no row is without a value, because Spark compares schemas exactly.
"""

import pyarrow as pa

from ropewalk.model.journal import COLUMNS, ColumnType

STRING = pa.string()
BINARY = pa.binary()
INT64 = pa.int64()
TIME = pa.timestamp("us", tz="UTC")

_TYPES = {ColumnType.TEXT: STRING, ColumnType.BYTES: BINARY, ColumnType.NUMBER: INT64, ColumnType.TIME: TIME}

SCHEMA = pa.schema([(column.name, _TYPES[column.type]) for column in COLUMNS])
