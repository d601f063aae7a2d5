"""Names are encoded as tokens of NATS subjects."""

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from ropewalk.adapters.backends.nats.names import MAX_PLAIN_BYTES, decode_token, pair_token, token

NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=MAX_PLAIN_BYTES // 4)
ODD = ["", "=", ".", "*", ">", "a b", "\r\n", "x" * MAX_PLAIN_BYTES, "x" * (MAX_PLAIN_BYTES + 1), "y" * (MAX_PLAIN_BYTES + 1)]


@given(NAMES)
def test_name_becomes_one_token_and_is_decoded_from_it(name: str) -> None:
    assert token(name)
    assert not set(token(name)) & set(" .*>\r\n\t")
    assert decode_token(token(name)) == name


def test_special_and_long_names_have_distinct_tokens() -> None:
    assert len({token(name) for name in ODD}) == len(ODD)
    assert all(len(token(name)) < 2 * MAX_PLAIN_BYTES for name in ODD)
    assert [decode_token(token(name)) for name in ODD] == [*ODD[:-2], None, None]


def test_pairs_with_the_same_concatenation_have_distinct_tokens() -> None:
    pairs = [("a:b", "c"), ("a", "b:c"), ("", "a:b:c"), ("a:b:c", ""), ("1 a", "b"), ("1", " ab")]
    assert all(pair_token(*first) != pair_token(*second) for first, second in combinations(pairs, 2))
