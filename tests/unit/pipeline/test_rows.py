"""The columns that Spark sees. Repeated here, because queries and checkpoints of users depend on them."""

import pytest

from ropewalk.pipeline.archive.layout import TABLE
from ropewalk.pipeline.options import source_options
from ropewalk.pipeline.rows import sql_schema

URL = {"url": "http://127.0.0.1:1"}
STANDARD = (
    "`key` string, `value` binary, `stream` string, `partition` int, `position` bigint, `offset` bigint, `epoch` string, "
    "`timestamp` timestamp, `event` string, `sid` string, `detail` string, `uid` string"
)
HEADERS = ", `headers` map<string,string>"
JOURNAL = ", `exclude_socket` string, `broadcast_type` string, `producer` string, `sequence` bigint"


def test_columns_of_the_source_are_unchanged(subtests: pytest.Subtests) -> None:
    cases: list[tuple[dict[str, str], str]] = [
        ({}, STANDARD),
        ({"includeHeaders": "true"}, STANDARD + HEADERS),
        ({"columns": "journal"}, STANDARD + JOURNAL),
        ({"columns": "journal", "includeHeaders": "true"}, STANDARD + JOURNAL + HEADERS),
    ]
    for given, columns in cases:
        with subtests.test(given=given):
            assert sql_schema(source_options({**URL, **given}, streaming=True)) == columns


def test_columns_of_the_archive_are_unchanged() -> None:
    assert [(field.name, str(field.type), field.nullable) for field in TABLE] == [
        ("position", "int64", True),
        ("event", "string", True),
        ("stream", "string", True),
        ("epoch", "string", True),
        ("offset", "int64", True),
        ("timestamp", "timestamp[us, tz=UTC]", True),
        ("key", "string", True),
        ("value", "binary", True),
        ("uid", "string", True),
        ("exclude_socket", "string", True),
        ("broadcast_type", "string", True),
        ("sid", "string", True),
        ("detail", "string", True),
        ("producer", "string", True),
        ("sequence", "int64", True),
        ("date", "string", True),
        ("shard", "int32", True),
    ]
