"""Sorted names, stored in chunks."""

from ropewalk.core.names import OrderedNames


def test_pages_span_chunks_in_order() -> None:
    names = OrderedNames(chunk=4)
    everything = [f"{number:03d}" for number in range(50)]
    for name in everything[::-2] + everything[::2]:
        names.add(name)
    assert names.after("", 100) == everything
    assert names.after("009", 7) == everything[10:17]
    assert names.after("049", 7) == []


def test_removed_name_can_be_added_again() -> None:
    names = OrderedNames(chunk=2)
    for name in "abcde":
        names.add(name)
    for name in "caebd":
        names.remove(name)
    assert names.after("", 10) == []
    names.add("c")
    assert names.after("b", 10) == ["c"]
