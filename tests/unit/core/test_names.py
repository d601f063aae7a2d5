"""Sorted names, stored in chunks."""

from hypothesis import given
from hypothesis import strategies as st

from ropewalk.core.names import OrderedNames, PrefixTable

keys = st.binary(max_size=4) | st.sampled_from([b"a", b"ab", b"abc", b"b", b""])


@given(added=st.lists(keys), removed=st.lists(keys), key=keys)
def test_matching_returns_exactly_the_stored_prefixes_of_a_key(added: list[bytes], removed: list[bytes], key: bytes) -> None:
    table: PrefixTable[bytes] = PrefixTable()
    for prefix in added:
        table.put(prefix, prefix)
    for prefix in removed:
        table.remove(prefix)
    remaining = {*added} - {*removed}
    assert sorted(table.matching(key)) == sorted(prefix for prefix in remaining if key.startswith(prefix))
    assert sorted(table.values()) == sorted(remaining)
    assert len(table) == len(remaining)
    assert (key in table) is (key in remaining) is (table.get(key) is not None)
    assert bool(table.by_length) is bool(remaining)


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
