"""Ordered names against a sorted set."""

from hypothesis import given
from hypothesis import strategies as st

from ropewalk.core.names import OrderedNames

NAMES = st.text("abc", max_size=3)


@given(st.integers(2, 5), st.lists(NAMES, max_size=60), NAMES, st.integers(0, 20))
def test_ordered_names_page_like_a_sorted_set(chunk: int, toggled: list[str], after: str, limit: int) -> None:
    names, model = OrderedNames(chunk), set[str]()
    for name in toggled:
        if name in model:
            names.remove(name)
            model.remove(name)
        else:
            names.add(name)
            model.add(name)
    assert names.after(after, limit) == [name for name in sorted(model) if name > after][:limit]
