"""Arrow bodies: which are accepted, how values are converted, and that a refusal names its row."""

import random

import pyarrow as pa
import pytest

from ropewalk.adapters.staging.arrow import ArrowRows
from ropewalk.model.errors import MalformedPublication
from ropewalk.model.messages import Publication
from ropewalk.protocol.publications import PublicationLimits
from tests.arrow_rows import body_of, body_of_table, rows_body

LIMITS = PublicationLimits(max_stream_name=20, max_publish_size=100)


def read(body: bytes) -> list[Publication]:
    rows = ArrowRows(body, LIMITS)
    return rows.publications(0, len(rows))


def test_rows_become_publications() -> None:
    assert read(rows_body(("a", '{"n":1}'), ("b", " [1] "))) == [Publication("a", b'{"n":1}'), Publication("b", b"[1]")]


def test_value_that_is_not_json_becomes_a_string() -> None:
    assert [row.payload for row in read(rows_body(("a", "hello"), ("a", "null"), ("a", ""), ("a", '"x"')))] == [
        b'"hello"',
        b'"null"',
        b'""',
        b'"x"',
    ]


def test_optional_columns_are_read_and_null_means_absent() -> None:
    body = body_of(
        {
            "exclude_socket": ["sid", None],
            "value": pa.array(["1", "2"], pa.large_string()),
            "uid": pa.array(["u", None], pa.large_string()),
            "broadcast_type": [None, "t"],
            "stream": ["a", "b"],
        }
    )
    assert read(body) == [
        Publication("a", b"1", exclude_socket="sid", uid="u"),
        Publication("b", b"2", broadcast_type="t"),
    ]


def test_rows_of_several_batches_can_be_read_in_parts() -> None:
    table = pa.concat_tables([pa.table({"stream": ["a"] * 3, "value": [b"1", b"2", b"3"]})] * 2)
    rows = ArrowRows(body_of_table(table), LIMITS)
    assert len(rows) == 6
    assert [row.payload for row in rows.publications(2, 3)] == [b"3", b"1", b"2"]


def test_body_without_rows_is_accepted() -> None:
    assert read(rows_body()) == []


def test_invalid_row_is_refused_with_its_index(subtests: pytest.Subtests) -> None:
    rows: list[tuple[str | None, bytes | None, str | None, str]] = [
        ("", b"1", None, "stream"),
        (None, b"1", None, "stream"),
        ("é" * 11, b"1", None, "stream is longer"),
        ("a", None, None, "value must not be null"),
        ("a", b"\xff", None, "UTF-8"),
        ("a", b"x" * 101, None, "value is longer"),
        ("a", b"1", "u" * 257, "uid is longer"),
    ]
    for stream, value, uid, reason in rows:
        with subtests.test(stream=stream, value=value, uid=uid, reason=reason):
            body = body_of(
                {
                    "stream": pa.array(["a", "a", stream], pa.string()),
                    "value": pa.array([b"1", b"2", value], pa.binary()),
                    "uid": pa.array([None, None, uid], pa.string()),
                }
            )
            with pytest.raises(MalformedPublication, match=reason) as refusal:
                read(body)
            assert refusal.value.index == 2


def test_invalid_row_has_the_same_index_when_rows_are_read_in_parts() -> None:
    rows = ArrowRows(rows_body(("a", "1"), ("a", "2"), ("", "3")), LIMITS)
    with pytest.raises(MalformedPublication) as refusal:
        rows.publications(2, 1)
    assert refusal.value.index == 2


def test_missing_unknown_and_mistyped_columns_are_refused(subtests: pytest.Subtests) -> None:
    rows: list[tuple[dict[str, object], str]] = [
        ({"stream": ["a"]}, "value is missing"),
        ({"value": [b"1"]}, "stream is missing"),
        ({"stream": ["a"], "value": [1]}, "value must be"),
        ({"stream": [b"a"], "value": [b"1"]}, "stream must be"),
        ({"stream": pa.array(["a"]).dictionary_encode(), "value": [b"1"]}, "stream must be"),
        ({"stream": pa.array(["a"], pa.string_view()), "value": [b"1"]}, "stream must be"),
        ({"stream": ["a"], "value": [b"1"], "topic": ["x"]}, "unknown column topic"),
    ]
    for columns, reason in rows:
        with subtests.test(columns=columns, reason=reason), pytest.raises(MalformedPublication, match=reason):
            read(body_of(columns))


def test_duplicate_column_is_refused() -> None:
    table = pa.table([pa.array(["a"]), pa.array([b"1"]), pa.array([b"2"])], names=["stream", "value", "value"])
    with pytest.raises(MalformedPublication, match="duplicate"):
        read(body_of_table(table))


def test_compressed_columns_are_refused(subtests: pytest.Subtests) -> None:
    for compression in ["lz4", "zstd"]:
        with subtests.test(compression=compression):
            table = pa.table({"stream": ["a"] * 1000, "value": [b"1"] * 1000})
            with pytest.raises(MalformedPublication, match="compressed"):
                read(body_of_table(table, compression=compression))


def test_body_that_is_not_an_arrow_stream_is_refused(subtests: pytest.Subtests) -> None:
    for body in [b"", b"\0" * 8, b"\xff" * 100, b'{"stream":"a","data":"1"}', rows_body(("a", "1"))[:-50]]:
        with subtests.test(body=body), pytest.raises(MalformedPublication):
            read(body)


def test_body_with_a_changed_byte_is_read_or_refused() -> None:
    chance = random.Random(5)
    good = rows_body(*((f"s{n}", str(n)) for n in range(5)))
    refused = 0
    for _ in range(1000):
        body = bytearray(good)
        body[chance.randrange(len(body))] = chance.randrange(256)
        try:
            read(bytes(body))
        except MalformedPublication:
            refused += 1
    assert refused > 0
