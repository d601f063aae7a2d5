"""Where a stream is on a ring, by its name."""

import pytest

from ropewalk.core.ring import partition_of, place_of, shard_of


@pytest.mark.parametrize(
    ("name", "partition"),
    [
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
    ],
)
def test_the_partition_key_is_what_a_name_has_in_its_first_braces_or_all_of_it(name: str, partition: str) -> None:
    assert partition_of(name) == partition
    assert place_of(name, 64) == shard_of(partition, 64)
