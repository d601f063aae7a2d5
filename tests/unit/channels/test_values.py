"""State of channels: values are kept as JSON texts, and results hold only changes."""

from datetime import date
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.channels import App, Channel, action
from ropewalk.channels.values import decode_state, state_changes
from ropewalk.model.application import merge_state
from tests.unit.channels.requests import encode_identifier, perform

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
states = st.dictionaries(st.text().filter(lambda key: not key.startswith("$")), json_values, max_size=4)


@given(states, states)
def test_state_round_trips(before: dict[str, Any], after: dict[str, Any]) -> None:
    kept = merge_state({}, state_changes({}, before, "state"))
    assert decode_state(kept) == before
    assert decode_state(merge_state(kept, state_changes(kept, after, "state"))) == after


@given(states)
def test_unchanged_state_has_no_changes(values: dict[str, Any]) -> None:
    kept = state_changes({}, values, "state")
    assert state_changes(kept, decode_state(kept), "state") == {}


def test_deleted_key_is_encoded_as_an_empty_text() -> None:
    assert state_changes({"a": "1", "b": "2"}, {"b": ""}, "state") == {"a": "", "b": '""'}


def test_internal_keys_are_hidden_and_kept() -> None:
    assert decode_state({"$w": "chat", "$p": "chat", "a": "1"}) == {"a": 1}
    assert state_changes({"$w": "chat"}, {}, "state") == {}


def test_text_that_is_not_json_is_shown_unchanged() -> None:
    assert decode_state({"theirs": "plain"}) == {"theirs": "plain"}


def test_value_that_does_not_round_trip_is_rejected(subtests: pytest.Subtests) -> None:
    cases: list[object] = [object(), date(2030, 1, 1), (1, 2), {1: 2}, {1, 2}, float("nan"), b"x", "\ud800"]
    for value in cases:
        with subtests.test(value=value), pytest.raises(TypeError, match=r"^self\.state\['k'\] "):
            state_changes({}, {"k": value}, "self.state")


def test_invalid_and_reserved_keys_are_rejected(subtests: pytest.Subtests) -> None:
    keys: list[Any] = ["$w", "$anything", 7, None]
    for key in keys:
        with subtests.test(key=key), pytest.raises(TypeError, match="keys are strings"):
            state_changes({}, {key: 1}, "self.state")


async def test_subscription_and_connection_have_separate_states() -> None:
    app = App()

    @app.channel
    class Counter(Channel):
        @action
        def count(self) -> None:
            self.state["n"] = self.state.get("n", 0) + 1
            self.state["seen"] = [*self.state.get("seen", []), self.state["n"]]
            self.connection.state["last"] = "count"
            self.state.pop("old", None)

    answer = await perform(
        app, encode_identifier("Counter"), "count", {"n": "4", "seen": "[4]", "old": "1", "same": '"s"', "$w": "a"}
    )
    assert answer.own == {"n": "5", "seen": "[4,5]", "old": ""}
    assert answer.state == {"last": '"count"'}


async def test_change_in_place_is_kept() -> None:
    app = App()

    @app.channel
    class Inbox(Channel):
        @action
        def add(self) -> None:
            self.state["items"].append("b")

    assert (await perform(app, encode_identifier("Inbox"), "add", {"items": '["a"]'})).own == {"items": '["a","b"]'}


async def test_state_can_be_replaced() -> None:
    app = App()

    @app.channel
    class Game(Channel):
        @action
        def reset(self) -> None:
            self.state = {"round": 1}

    assert (await perform(app, encode_identifier("Game"), "reset", {"score": "9", "$p": "game"})).own == {
        "score": "",
        "round": "1",
    }
