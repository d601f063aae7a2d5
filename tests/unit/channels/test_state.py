"""State lasts: values in, JSON texts kept, and only what changed goes back."""

from datetime import date
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.channels import App, Channel, action
from ropewalk.channels.state import changes, shown
from ropewalk.model.application import merged
from tests.unit.channels.requests import named, perform

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
states = st.dictionaries(st.text().filter(lambda key: not key.startswith("$")), json_values, max_size=4)


@given(states, states)
def test_what_is_put_in_comes_out(before: dict[str, Any], after: dict[str, Any]) -> None:
    kept = merged({}, changes({}, before, "state"))
    assert shown(kept) == before
    assert shown(merged(kept, changes(kept, after, "state"))) == after


@given(states)
def test_what_did_not_change_is_not_sent(values: dict[str, Any]) -> None:
    kept = changes({}, values, "state")
    assert changes(kept, shown(kept), "state") == {}


def test_a_deleted_key_is_an_empty_text_and_an_empty_string_is_not() -> None:
    assert changes({"a": "1", "b": "2"}, {"b": ""}, "state") == {"a": "", "b": '""'}


def test_what_the_server_keeps_for_itself_is_not_shown_and_not_lost() -> None:
    assert shown({"$w": "chat", "$p": "chat", "a": "1"}) == {"a": 1}
    assert changes({"$w": "chat"}, {}, "state") == {}


def test_a_text_that_is_no_json_is_shown_as_it_is() -> None:
    assert shown({"theirs": "plain"}) == {"theirs": "plain"}


@pytest.mark.parametrize("value", [object(), date(2030, 1, 1), (1, 2), {1: 2}, {1, 2}, float("nan"), b"x", "\ud800"])
def test_what_would_not_come_back_as_it_was_is_refused(value: object) -> None:
    with pytest.raises(TypeError, match=r"^self\.state\['k'\] "):
        changes({}, {"k": value}, "self.state")


@pytest.mark.parametrize("key", ["$w", "$anything", 7, None])
def test_keys_are_strings_that_the_server_does_not_use(key: Any) -> None:
    with pytest.raises(TypeError, match="keys are strings"):
        changes({}, {key: 1}, "self.state")


async def test_a_subscription_counts_in_its_state_and_a_connection_in_its_own() -> None:
    app = App()

    @app.channel
    class Counter(Channel):
        @action
        def count(self) -> None:
            self.state["n"] = self.state.get("n", 0) + 1
            self.state["seen"] = [*self.state.get("seen", []), self.state["n"]]
            self.connection.state["last"] = "count"
            self.state.pop("old", None)

    answer = await perform(app, named("Counter"), "count", {"n": "4", "seen": "[4]", "old": "1", "same": '"s"', "$w": "a"})
    assert answer.own == {"n": "5", "seen": "[4,5]", "old": ""}
    assert answer.state == {"last": '"count"'}


async def test_a_value_that_is_changed_in_place_is_kept() -> None:
    app = App()

    @app.channel
    class Inbox(Channel):
        @action
        def add(self) -> None:
            self.state["items"].append("b")

    assert (await perform(app, named("Inbox"), "add", {"items": '["a"]'})).own == {"items": '["a","b"]'}


async def test_state_may_be_replaced_as_a_whole() -> None:
    app = App()

    @app.channel
    class Game(Channel):
        @action
        def reset(self) -> None:
            self.state = {"round": 1}

    assert (await perform(app, named("Game"), "reset", {"score": "9", "$p": "game"})).own == {"score": "", "round": "1"}
