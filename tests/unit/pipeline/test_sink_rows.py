"""Rows on their way to the server: those that cannot be a publication are refused with their column's name."""

import pyarrow as pa
import pytest

from ropewalk.model.errors import UserMistake
from ropewalk.pipeline.options import Address, Delivery, SinkOptions
from ropewalk.pipeline.sink_rows import outgoing

KEYED = SinkOptions(Address("http://127.0.0.1:1"), delivery=Delivery.KEYED)


def batch(**columns: list[str | None]) -> pa.RecordBatch:
    whole = {"stream": ["a", "a", "a"], "value": ["1", "2", "3"], "uid": ["x", "y", "z"], **columns}
    return pa.RecordBatch.from_pydict({name: pa.array(values, pa.string()) for name, values in whole.items()})


def test_a_whole_batch_is_sent_as_it_is() -> None:
    (body,) = outgoing(batch(), KEYED)
    assert body.column("uid").to_pylist() == ["x", "y", "z"]


@pytest.mark.parametrize("column", ["stream", "value", "uid"])
@pytest.mark.parametrize(("cells", "absent"), [(["x", None, "z"], 1), (["x", "", "z"], 1), (["", None, ""], 3)])
def test_an_empty_cell_is_refused_like_none_at_all(column: str, cells: list[str | None], absent: int) -> None:
    with pytest.raises(UserMistake, match=f"^{absent} rows have no {column}$"):
        list(outgoing(batch(**{column: cells}), KEYED))


def test_a_uid_is_not_needed_where_it_is_not_the_key() -> None:
    (body,) = outgoing(batch(uid=["", None, "z"]), SinkOptions(KEYED.address))
    assert body.num_rows == 3


def test_a_batch_without_rows_has_nothing_to_refuse() -> None:
    assert list(outgoing(batch(stream=[], value=[], uid=[]), KEYED)) == []
