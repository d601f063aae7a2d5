"""Spellings of one identity."""

import pytest

from ropewalk.core.identities import spellings


def test_json_identity_is_spelled_with_and_without_spaces(subtests: pytest.Subtests) -> None:
    rows: list[str] = ['{"user":1}', '{"user": 1}', '{ "user" :1}']
    for given in rows:
        with subtests.test(given=given):
            assert {'{"user":1}', '{"user": 1}', given} == set(spellings(given))


def test_other_text_has_one_spelling(subtests: pytest.Subtests) -> None:
    rows: list[str] = ["ann", "", "{no json", "42", '"text"']
    for given in rows:
        with subtests.test(given=given):
            assert spellings(given) == [given]
