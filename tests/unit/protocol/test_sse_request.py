"""Requests of SSE clients, and the refusal of invalid ones."""

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
from ropewalk.protocol.sse import subscription_of_query, subscriptions_of_body, wants_raw

NEW = LastEventId()
RESUME = LastEventId({"chat": Position("e1", 7)})


# --- the query --------------------------------------------------------------------------------------------------------


def test_each_parameter_maps_to_an_identifier(subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, object]] = [
        ("channel", {"channel": "v"}),
        ("stream", {"channel": "$pubsub", "stream_name": "v"}),
        ("signed_stream", {"channel": "$pubsub", "signed_stream_name": "v"}),
        ("turbo_signed_stream_name", {"channel": "Turbo::StreamsChannel", "signed_stream_name": "v"}),
    ]
    for name, identifier in rows:
        with subtests.test(name=name, identifier=identifier):
            assert json.loads(subscription_of_query({name: "v"}, NEW).identifier) == identifier


def test_identifier_is_used_unchanged() -> None:
    assert subscription_of_query({"identifier": '{"channel": "X"}'}, NEW) == Subscribe('{"channel": "X"}')


def test_first_parameter_in_the_documented_order_wins() -> None:
    order = ["identifier", "channel", "stream", "signed_stream", "turbo_signed_stream_name"]
    params = {name: f"by {name}" for name in reversed(order)}
    for name in order:
        assert f"by {name}" in subscription_of_query(params, NEW).identifier
        del params[name]


def test_query_without_a_subscription_is_refused(subtests: pytest.Subtests) -> None:
    rows: list[dict[str, str]] = [{}, {"stream": ""}, {"other": "x"}, {"history_since": "5"}]
    for params in rows:
        with subtests.test(params=params), pytest.raises(BadRequest, match="identifier, channel, stream"):
            subscription_of_query(params, NEW)


def test_parameter_that_is_not_utf8_is_refused(subtests: pytest.Subtests) -> None:
    rows: list[str] = ["identifier", "stream"]
    for name in rows:
        with subtests.test(name=name), pytest.raises(BadRequest, match="UTF-8"):
            subscription_of_query({name: "\udcff"}, NEW)


def test_history_since_requests_history(subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, float]] = [("1681828329", 1681828329.0), ("1.5", 1.5)]
    for text, since in rows:
        with subtests.test(text=text, since=since):
            assert subscription_of_query({"stream": "s", "history_since": text}, NEW).history == HistoryRequest(since)


def test_empty_or_zero_history_since_requests_no_history(subtests: pytest.Subtests) -> None:
    rows: list[str] = ["", "0"]
    for text in rows:
        with subtests.test(text=text):
            assert subscription_of_query({"stream": "s", "history_since": text}, NEW).history is None


def test_invalid_history_since_is_refused(subtests: pytest.Subtests) -> None:
    rows: list[str] = ["yesterday", "-5", "nan", "inf", "1e9", "1_0", "１", "9" * 30, "."]
    for text in rows:
        with subtests.test(text=text), pytest.raises(BadRequest, match="history_since"):
            subscription_of_query({"stream": "s", "history_since": text}, NEW)


def test_raw_is_a_boolean_parameter(subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, bool]] = [("1", True), ("true", True), ("t", True), ("y", True), ("0", False), ("", False)]
    for text, raw in rows:
        with subtests.test(text=text, raw=raw):
            assert wants_raw({"raw": text}) is raw
            assert wants_raw({}) is False


# --- the last event id ------------------------------------------------------------------------------------------------


def test_resumed_query_requests_history_after_its_position() -> None:
    history = subscription_of_query({"stream": "chat", "history_since": "5"}, RESUME).history
    assert history == HistoryRequest(5.0, {"chat": Position("e1", 7)})


# --- the body ---------------------------------------------------------------------------------------------------------


def test_body_has_one_subscribe_command_per_line() -> None:
    body = (
        b'{"command":"subscribe","identifier":"a"}\r\n\n'
        b'{"command":"subscribe","identifier":"b","history":{"since":5},"presence":{"id":"42","info":{"n":1}}}\n'
    )
    assert subscriptions_of_body(body, NEW, 9) == [
        Subscribe("a"),
        Subscribe("b", HistoryRequest(5.0), Member("42", b'{"n":1}')),
    ]


def test_later_position_in_a_command_wins_over_the_last_event_id() -> None:
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


def test_invalid_body_is_refused(subtests: pytest.Subtests) -> None:
    rows: list[bytes] = [
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
    ]
    for body in rows:
        with subtests.test(body=body), pytest.raises(BadRequest):
            subscriptions_of_body(body, NEW, 3)


def test_refused_body_names_the_invalid_command() -> None:
    with pytest.raises(BadRequest, match="command 2"):
        subscriptions_of_body(b'{"command":"subscribe","identifier":"a"}\n{"command":"ping"}', NEW, 3)


@given(st.binary())
def test_any_body_is_parsed_or_refused(body: bytes) -> None:
    try:
        outcome: object = subscriptions_of_body(body, NEW, 3)
    except BadRequest as error:
        outcome = str(error)
    assert outcome


def test_later_of_last_event_id_and_body_position_is_used(subtests: pytest.Subtests) -> None:
    rows: list[tuple[Position, Position]] = [
        (Position("", 0), Position("e1", 7)),  # the first request, repeated
        (Position("e1", 3), Position("e1", 7)),
        (Position("e1", 9), Position("e1", 9)),
        (Position("e0", 9), Position("e1", 7)),
    ]
    for named, expected in rows:
        with subtests.test(named=named, expected=expected):
            asked = {"epoch": named.epoch, "offset": named.offset}
            line = json.dumps({"command": "subscribe", "identifier": "i", "history": {"streams": {"chat": asked}}})
            (command,) = subscriptions_of_body(line.encode(), RESUME, 9)
            assert command.history == HistoryRequest(None, {"chat": expected})
