"""Deadlines: each key once, at its last deadline, with bounded work and a bounded heap."""

from ropewalk.core.expiry import MAX_STALE_ENTRIES, Expiry

ALL = 1_000_000


def test_keys_are_due_once_in_order_of_their_deadlines() -> None:
    expiry = Expiry()
    for key, deadline in (("c", 3.0), ("a", 1.0), ("b", 2.0), ("d", 4.0)):
        expiry.set(key, deadline)
    assert expiry.due(3.0, ALL) == ["a", "b", "c"]
    assert expiry.due(3.0, ALL) == []
    assert len(expiry) == 1


def test_deadline_can_move_in_both_directions() -> None:
    expiry = Expiry()
    expiry.set("later", 1.0)
    expiry.set("later", 5.0)
    expiry.set("earlier", 9.0)
    expiry.set("earlier", 2.0)
    assert expiry.due(4.0, ALL) == ["earlier"]
    assert expiry.due(9.0, ALL) == ["later"]


def test_discarded_key_is_never_due() -> None:
    expiry = Expiry()
    expiry.set("a", 1.0)
    expiry.discard("a")
    expiry.discard("unknown")
    assert "a" not in expiry
    assert expiry.due(2.0, ALL) == []


def test_due_returns_at_most_the_given_number_of_keys() -> None:
    expiry = Expiry()
    for number in range(10):
        expiry.set(f"key{number}", float(number))
    assert expiry.due(100.0, 4) == ["key0", "key1", "key2", "key3"]
    assert len(expiry) == 6


def test_heap_stays_bounded_when_keys_are_set_and_discarded_repeatedly() -> None:
    expiry = Expiry()
    expiry.set("stays", 5.0)
    for number in range(10 * MAX_STALE_ENTRIES):
        expiry.set("a", 1000.0 - number)
        expiry.set("b", 1000.0)
        expiry.discard("b")
    assert len(expiry._heap) <= 2 * len(expiry) + MAX_STALE_ENTRIES
    assert expiry.due(2000.0, ALL) == ["stays", "a"]
