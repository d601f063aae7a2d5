from hypothesis import given
from hypothesis import strategies as st

from ropewalk.core.prefix_table import PrefixTable

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
