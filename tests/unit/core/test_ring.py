"""The shard of a stream, by its name."""

import pytest

from ropewalk.core.ring import partition_of, place_of, shard_of


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
            assert partition_of(name) == partition
            assert place_of(name, 64) == shard_of(partition, 64)
