"""What SSE clients ask for, and how what cannot be read is refused."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.model.commands import Subscribe
from ropewalk.model.errors import BadRequest
from ropewalk.model.history import HistoryRequest
from ropewalk.model.messages import Position
from ropewalk.model.presence import Member
from ropewalk.protocol.event_ids import LastEventId, subscription_key
from ropewalk.protocol.sse_request import subscription_of_query, subscriptions_of_body, wants_raw

NEW = LastEventId()
RESUME = LastEventId({"chat": Position("e1", 7)})


# --- the query --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "identifier"),
    [
        ("channel", {"channel": "v"}),
        ("stream", {"channel": "$pubsub", "stream_name": "v"}),
        ("signed_stream", {"channel": "$pubsub", "signed_stream_name": "v"}),
        ("turbo_signed_stream_name", {"channel": "Turbo::StreamsChannel", "signed_stream_name": "v"}),
    ],
)
def test_a_parameter_stands_for_an_identifier(name: str, identifier: object) -> None:
    assert json.loads(subscription_of_query({name: "v"}, NEW).identifier) == identifier


def test_an_identifier_is_taken_as_it_is() -> None:
    assert subscription_of_query({"identifier": '{"channel": "X"}'}, NEW) == Subscribe('{"channel": "X"}')


def test_of_several_parameters_the_first_of_the_order_counts() -> None:
    order = ["identifier", "channel", "stream", "signed_stream", "turbo_signed_stream_name"]
    params = {name: f"by {name}" for name in reversed(order)}
    for name in order:
        assert f"by {name}" in subscription_of_query(params, NEW).identifier
        del params[name]


@pytest.mark.parametrize("params", [{}, {"stream": ""}, {"other": "x"}, {"history_since": "5"}])
def test_a_query_without_a_subscription_is_refused(params: dict[str, str]) -> None:
    with pytest.raises(BadRequest, match="identifier, channel, stream"):
        subscription_of_query(params, NEW)


@pytest.mark.parametrize("name", ["identifier", "stream"])
def test_a_parameter_that_is_no_text_is_refused(name: str) -> None:
    with pytest.raises(BadRequest, match="UTF-8"):
        subscription_of_query({name: "\udcff"}, NEW)


@pytest.mark.parametrize(("text", "since"), [("1681828329", 1681828329.0), ("1.5", 1.5)])
def test_history_since_asks_for_the_past(text: str, since: float) -> None:
    assert subscription_of_query({"stream": "s", "history_since": text}, NEW).history == HistoryRequest(since)


@pytest.mark.parametrize("text", ["", "0"])
def test_no_time_asks_for_no_past(text: str) -> None:
    assert subscription_of_query({"stream": "s", "history_since": text}, NEW).history is None


@pytest.mark.parametrize("text", ["yesterday", "-5", "nan", "inf", "1e9", "1_0", "１", "9" * 30, "."])
def test_a_time_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(BadRequest, match="history_since"):
        subscription_of_query({"stream": "s", "history_since": text}, NEW)


@pytest.mark.parametrize(("text", "raw"), [("1", True), ("true", True), ("t", True), ("y", True), ("0", False), ("", False)])
def test_raw_is_asked_for_with_a_yes(text: str, raw: bool) -> None:
    assert wants_raw({"raw": text}) is raw
    assert wants_raw({}) is False


# --- the last event id ------------------------------------------------------------------------------------------------


def test_a_resumed_query_asks_for_what_follows_its_position() -> None:
    history = subscription_of_query({"stream": "chat", "history_since": "5"}, RESUME).history
    assert history == HistoryRequest(5.0, {"chat": Position("e1", 7)})


# --- the body ---------------------------------------------------------------------------------------------------------


def test_a_body_is_one_subscribe_command_a_line() -> None:
    body = (
        b'{"command":"subscribe","identifier":"a"}\r\n\n'
        b'{"command":"subscribe","identifier":"b","history":{"since":5},"presence":{"id":"42","info":{"n":1}}}\n'
    )
    assert subscriptions_of_body(body, NEW, 9) == [
        Subscribe("a"),
        Subscribe("b", HistoryRequest(5.0), Member("42", b'{"n":1}')),
    ]


def test_a_later_position_in_a_command_counts_more_than_the_last_event_id() -> None:
    body = (
        b'{"command":"subscribe","identifier":"a","history":{"streams":{"chat":{"epoch":"e1","offset":9}}}}\n'
        b'{"command":"subscribe","identifier":"b"}'
    )
    first, second = subscriptions_of_body(body, RESUME, 9)
    assert first.history == HistoryRequest(None, {"chat": Position("e1", 9)})
    assert second.history == HistoryRequest(None, {"chat": Position("e1", 7)})


def test_each_subscription_of_a_body_gets_its_own_position() -> None:
    last = LastEventId({"chat": Position("e1", 7)}, {(subscription_key("b"), "chat"): Position("e1", 6)})
    body = b'{"command":"subscribe","identifier":"a"}\n{"command":"subscribe","identifier":"b"}'
    first, second = subscriptions_of_body(body, last, 9)
    assert first.history == HistoryRequest(None, {"chat": Position("e1", 7)})
    assert second.history == HistoryRequest(None, {"chat": Position("e1", 6)})


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\n \n",
        b"nonsense",
        b"\xff",
        b"[]",
        b"{}",
        b'{"command":"subscribe"}',
        b'{"command":"subscribe","identifier":7}',
        b'{"command":"unsubscribe","identifier":"a"}',
        b'{"command":"subscribe","identifier":"a"}\n{"command":"ping"}',
        b'{"command":"subscribe","identifier":"a"}\n' * 4,
    ],
)
def test_a_body_that_holds_anything_else_is_refused(body: bytes) -> None:
    with pytest.raises(BadRequest):
        subscriptions_of_body(body, NEW, 3)


def test_a_refused_body_says_which_command_is_wrong() -> None:
    with pytest.raises(BadRequest, match="command 2"):
        subscriptions_of_body(b'{"command":"subscribe","identifier":"a"}\n{"command":"ping"}', NEW, 3)


@given(st.binary())
def test_any_body_is_understood_or_refused(body: bytes) -> None:
    try:
        outcome: object = subscriptions_of_body(body, NEW, 3)
    except BadRequest as error:
        outcome = str(error)
    assert outcome


@pytest.mark.parametrize(
    ("named", "counts"),
    [
        (Position("", 0), Position("e1", 7)),  # the first request, repeated
        (Position("e1", 3), Position("e1", 7)),
        (Position("e1", 9), Position("e1", 9)),
        (Position("e0", 9), Position("e1", 7)),
    ],
)
def test_of_the_last_event_id_and_a_position_in_the_body_the_later_one_counts(named: Position, counts: Position) -> None:
    asked = {"epoch": named.epoch, "offset": named.offset}
    line = json.dumps({"command": "subscribe", "identifier": "i", "history": {"streams": {"chat": asked}}})
    (command,) = subscriptions_of_body(line.encode(), RESUME, 9)
    assert command.history == HistoryRequest(None, {"chat": counts})
