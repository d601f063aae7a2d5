"""The shard of a stream, by its name."""

import pytest

from ropewalk.core.ring import locate_shard, locate_stream, parse_partition


def test_partition_key_is_the_text_in_the_first_braces_or_the_whole_name(subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, str]] = [
        ("chat/1", "chat/1"),
        ("{room}/typing", "room"),
        ("room/{7}", "7"),
        ("{a}{b}", "a"),
        ("{{a}}", "{a"),
        ("{}/a", "{}/a"),
        ("{}{a}", "{}{a}"),
        ("{a", "{a"),
        ("a}", "a}"),
        ("}{a}", "a"),
        ("", ""),
    ]
    for name, partition in rows:
        with subtests.test(name=name, partition=partition):
            assert parse_partition(name) == partition
            assert locate_stream(name, 64) == locate_shard(partition, 64)
