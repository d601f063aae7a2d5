from hypothesis import given
from hypothesis import strategies as st

from ropewalk.core.prefix_table import PrefixTable

keys = st.binary(max_size=4) | st.sampled_from([b"a", b"ab", b"abc", b"b", b""])


@given(added=st.lists(keys), removed=st.lists(keys), asked=keys)
def test_it_finds_the_prefixes_that_a_key_begins_with_and_no_others(
    added: list[bytes], removed: list[bytes], asked: bytes
) -> None:
    table: PrefixTable[bytes] = PrefixTable()
    for prefix in added:
        table.put(prefix, prefix)
    for prefix in removed:
        table.remove(prefix)
    left = {*added} - {*removed}
    assert sorted(table.matching(asked)) == sorted(prefix for prefix in left if asked.startswith(prefix))
    assert sorted(table.values()) == sorted(left)
    assert len(table) == len(left)
    assert (asked in table) is (asked in left) is (table.get(asked) is not None)
    assert bool(table.by_length) is bool(left)
