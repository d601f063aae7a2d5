"""One identity, however it is spelled."""

import pytest

from ropewalk.core.identities import spellings


@pytest.mark.parametrize("given", ['{"user":1}', '{"user": 1}', '{ "user" :1}'])
def test_json_is_the_same_whatever_spaces_it_has(given: str) -> None:
    assert {'{"user":1}', '{"user": 1}', given} == set(spellings(given))


@pytest.mark.parametrize("given", ["ann", "", "{no json", "42", '"text"'])
def test_other_text_is_only_itself(given: str) -> None:
    assert spellings(given) == [given]
