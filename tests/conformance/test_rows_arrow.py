"""Bodies of Arrow rows: the complete suite of row readers."""

from collections.abc import Sequence
from functools import partial

import pyarrow as pa

from ropewalk.adapters.staging.arrow import ArrowRows
from ropewalk.model.messages import Publication
from ropewalk.ports import RowReader
from ropewalk.protocol.publications import PublicationLimits
from ropewalk.testing.rows import RowReaderConformance
from tests.arrow_rows import body_of


class TestArrowRows(RowReaderConformance):
    def make(self) -> RowReader:
        return partial(ArrowRows, limits=PublicationLimits())

    def body(self, rows: Sequence[Publication]) -> bytes:
        names = ("stream", "uid", "broadcast_type", "exclude_socket", "producer")
        texts = {name: pa.array([getattr(row, name) or None for row in rows], pa.string()) for name in names}
        values = pa.array([row.payload for row in rows], pa.binary())
        sequences = pa.array([row.sequence if row.producer else None for row in rows], pa.int64())
        return body_of({**texts, "value": values, "sequence": sequences})
