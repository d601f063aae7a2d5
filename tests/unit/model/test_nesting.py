"""The nesting depth of JSON, measured without decoding it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.model.nesting import MAX_DEPTH, is_too_deep

VALUES = st.recursive(
    st.one_of(st.none(), st.integers(), st.text(st.sampled_from('[]{}"\\a é\n'))),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(st.sampled_from('[{"\\b')), inner, max_size=3)
    ),
    max_leaves=30,
)


def depth(value: object) -> int:
    match value:
        case list():
            return 1 + max(map(depth, value), default=0)
        case dict():
            return 1 + max(map(depth, value.values()), default=0)
        case _:
            return 0


def test_limit_is_exact(subtests: pytest.Subtests) -> None:
    brackets: list[tuple[str, str]] = [("[", "]"), ('{"a":', "}"), (' [\n"]]\\"]]",', "]\t")]
    for left, right in brackets:
        for extra in (0, 1):
            with subtests.test(left=left, right=right, extra=extra):
                text = left * (MAX_DEPTH + extra) + "0" + right * (MAX_DEPTH + extra)
                assert json.loads(text)
                assert is_too_deep(text) is bool(extra)
                assert is_too_deep(text.encode()) is bool(extra)


@given(VALUES, st.integers(0, 6), st.booleans())
def test_depth_equals_that_of_the_decoded_value(value: object, limit: int, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only)
    assert is_too_deep(text, limit) is (depth(value) > limit)
    assert is_too_deep(text.encode(), limit) is (depth(value) > limit)


@given(VALUES, st.integers(0, 3))
def test_many_flat_values_are_not_deep(value: object, limit: int) -> None:
    text = json.dumps([value] * 50)
    assert is_too_deep(text, depth(value)) is True
    assert is_too_deep(text, depth(value) + 1 + limit) is False


def test_text_that_does_not_start_with_a_bracket_is_not_deep(subtests: pytest.Subtests) -> None:
    rows: list[str] = ["", "plain", "(" * 500, '"' + "[" * 500 + '"', "text and " + "[" * 500, "]" * 500, "\ud800" + "[" * 500]
    for text in rows:
        with subtests.test(text=text):
            assert not is_too_deep(text)


@given(st.text(st.sampled_from('[]{}"\\,: \ud800')), st.integers(0, 3))
def test_any_text_can_be_measured(text: str, limit: int) -> None:
    assert is_too_deep(text, limit) in (True, False)


def test_limit_is_exact_after_many_brackets(subtests: pytest.Subtests) -> None:
    rows: list[int] = [0, 1]
    for extra in rows:
        with subtests.test(extra=extra):
            text = "[" + "[[]]," * 5000 + "[" * (MAX_DEPTH - 1 + extra) + "]" * (MAX_DEPTH - 1 + extra) + "]"
            assert is_too_deep(text) is bool(extra)
