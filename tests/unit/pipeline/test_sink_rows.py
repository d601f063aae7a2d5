"""Rows for the server: rows without a required value are rejected with the name of the column."""

from itertools import product

import pyarrow as pa
import pytest

from ropewalk.model.errors import UserMistake
from ropewalk.pipeline.options import Address, Delivery, SinkOptions
from ropewalk.pipeline.sink import publication_bodies

KEYED = SinkOptions(Address("http://127.0.0.1:1"), delivery=Delivery.KEYED)


def batch(**columns: list[str | None]) -> pa.RecordBatch:
    complete = {"stream": ["a", "a", "a"], "value": ["1", "2", "3"], "uid": ["x", "y", "z"], **columns}
    return pa.RecordBatch.from_pydict({name: pa.array(values, pa.string()) for name, values in complete.items()})


def test_complete_batch_is_sent_unchanged() -> None:
    (body,) = publication_bodies(batch(), KEYED)
    assert body.column("uid").to_pylist() == ["x", "y", "z"]


def test_empty_and_null_cells_are_rejected(subtests: pytest.Subtests) -> None:
    cases: list[tuple[list[str | None], int]] = [(["x", None, "z"], 1), (["x", "", "z"], 1), (["", None, ""], 3)]
    for (cells, count), column in product(cases, ["stream", "value", "uid"]):
        message = f"^{count} rows have no {column}$"
        with subtests.test(column=column, cells=cells), pytest.raises(UserMistake, match=message):
            list(publication_bodies(batch(**{column: cells}), KEYED))


def test_uid_is_optional_unless_it_is_the_key() -> None:
    (body,) = publication_bodies(batch(uid=["", None, "z"]), SinkOptions(KEYED.address))
    assert body.num_rows == 3


def test_empty_batch_sends_nothing() -> None:
    assert list(publication_bodies(batch(stream=[], value=[], uid=[]), KEYED)) == []
