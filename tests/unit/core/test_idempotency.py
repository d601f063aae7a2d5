"""Idempotency: uids are bounded by time and number; each shard stores the last sequence of a producer."""

from ropewalk.core.idempotency import MAX_PRODUCER_POSITIONS, UNKNOWN_POSITION, Dedup, Producers
from ropewalk.model.messages import Position

FIRST = Position("epoch", 1)


def test_uid_is_known_until_exactly_its_ttl() -> None:
    dedup = Dedup(ttl=10.0, limit=5)
    dedup.remember("a", "u", FIRST, 100.0)
    assert dedup.find("a", "u", 109.75) == FIRST
    assert dedup.find("a", "u", 110.0) is None
    assert dedup.find("b", "u", 100.0) is None


def test_uid_stored_again_becomes_the_newest() -> None:
    dedup = Dedup(ttl=10.0, limit=2)
    dedup.remember("a", "old", FIRST, 0.0)
    dedup.remember("a", "young", FIRST, 5.0)
    dedup.remember("a", "old", Position("epoch", 2), 10.0)
    dedup.remember("a", "newest", FIRST, 10.0)
    assert dedup.find("a", "old", 10.0) == Position("epoch", 2)
    assert dedup.find("a", "young", 10.0) is None


def test_expire_removes_at_most_the_given_number_of_uids() -> None:
    dedup = Dedup(ttl=10.0, limit=10)
    for number in range(5):
        dedup.remember("a", str(number), FIRST, float(number))
    dedup.expire(13.0, most=3)
    assert len(dedup) == 2
    dedup.expire(13.0, most=3)
    assert len(dedup) == 1


def test_limit_of_zero_stores_nothing() -> None:
    dedup = Dedup(ttl=10.0, limit=0)
    dedup.remember("a", "u", FIRST, 0.0)
    assert dedup.find("a", "u", 0.0) is None


def test_sequence_above_the_last_is_not_known() -> None:
    producers = Producers()
    assert producers.find("p", 0, 0) is None
    producers.remember("p", 0, 0, Position("e", 1))
    assert producers.find("p", 0, 0) == Position("e", 1)
    assert producers.find("p", 0, 1) is None


def test_sequence_of_another_shard_is_not_known() -> None:
    producers = Producers()
    producers.remember("p", 0, 5, Position("e", 1))
    assert producers.find("p", 1, 3) is None
    assert producers.find("q", 0, 3) is None


def test_skipped_sequence_counts_as_registered() -> None:
    producers = Producers()
    producers.remember("p", 0, 5, Position("e", 1))
    assert producers.find("p", 0, 3) == UNKNOWN_POSITION


def test_only_the_latest_positions_of_a_producer_are_kept() -> None:
    producers = Producers()
    for number in range(MAX_PRODUCER_POSITIONS + 10):
        producers.remember("p", 0, number, Position("e", number + 1))
    assert producers.find("p", 0, 9) == UNKNOWN_POSITION
    assert producers.find("p", 0, 10) == Position("e", 11)


def test_reaching_a_lower_sequence_has_no_effect() -> None:
    producers = Producers()
    producers.reach("p", 0, 5)
    producers.reach("p", 0, 3)
    assert producers.find("p", 0, 5) == UNKNOWN_POSITION
    assert producers.find("p", 0, 6) is None
    assert len(producers) == 1
