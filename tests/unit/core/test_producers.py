"""Producers: each shard knows for itself how far a producer has come."""

from ropewalk.core.producers import FORGOTTEN, REMEMBERED, Producers
from ropewalk.model.messages import Position


def test_a_sequence_above_the_last_is_not_known() -> None:
    producers = Producers()
    assert producers.find("p", 0, 0) is None
    producers.remember("p", 0, 0, Position("e", 1))
    assert producers.find("p", 0, 0) == Position("e", 1)
    assert producers.find("p", 0, 1) is None


def test_a_sequence_that_another_shard_registered_is_not_known_here() -> None:
    producers = Producers()
    producers.remember("p", 0, 5, Position("e", 1))
    assert producers.find("p", 1, 3) is None
    assert producers.find("q", 0, 3) is None


def test_what_was_skipped_counts_as_registered_for_a_sequence_only_grows() -> None:
    producers = Producers()
    producers.remember("p", 0, 5, Position("e", 1))
    assert producers.find("p", 0, 3) == FORGOTTEN


def test_positions_of_the_latest_only_are_remembered() -> None:
    producers = Producers()
    for number in range(REMEMBERED + 10):
        producers.remember("p", 0, number, Position("e", number + 1))
    assert producers.find("p", 0, 9) == FORGOTTEN
    assert producers.find("p", 0, 10) == Position("e", 11)


def test_reaching_less_than_is_known_changes_nothing() -> None:
    producers = Producers()
    producers.reach("p", 0, 5)
    producers.reach("p", 0, 3)
    assert producers.find("p", 0, 5) == FORGOTTEN
    assert producers.find("p", 0, 6) is None
    assert len(producers) == 1
