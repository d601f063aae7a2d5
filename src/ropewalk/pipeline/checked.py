"""Reads files of a table after verifying their digest.

Invariant: rows of a file that differs from the digest in its name go nowhere, least of all into a new file with a right
digest.
"""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from ropewalk.core.digests import is_unchanged
from ropewalk.model.errors import ServerError
from ropewalk.protocol.journal_schema import without_views

CHANGED = "was changed after it was written"
BROKEN = (OSError, ValueError, TypeError, LookupError, pa.ArrowException)
"""What reading bytes that are not a Parquet file ends in."""


class DamagedFile(ServerError):
    """A file of a table that was changed after it was written. `path` is relative to the table."""

    def __init__(self, path: str, what: str) -> None:
        super().__init__(f"the file {path} {what}; `ropewalk pipeline run audit` names all such files of the archive")
        self.path = path
        self.what = what


def unchanged(place: Path) -> bool:
    with place.open("rb") as file:
        return is_unchanged(place.name, file)


def read_file(root: str | Path, path: str, columns: list[str] | None = None, rows: object = None) -> pa.Table:
    """`rows` is an expression that chooses some. Raises FileNotFoundError, and DamagedFile."""
    place = Path(root) / path
    try:
        if not unchanged(place):
            raise DamagedFile(path, CHANGED)
        schema = without_views(pq.read_schema(place))
        return pq.read_table(place, columns=columns, filters=rows, schema=schema, partitioning=None)
    except FileNotFoundError:
        raise
    except BROKEN as error:
        raise DamagedFile(path, f"cannot be read: {error}") from error
