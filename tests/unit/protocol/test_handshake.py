"""Session options in an HTTP request."""

from collections import Counter

import pytest

from ropewalk.model.sessions import ClientOptions
from ropewalk.protocol.handshake import AllowedOrigins, chosen_subprotocol, client_options, find_token, offered_subprotocols


def test_subprotocol_is_chosen_in_the_servers_order(subtests: pytest.Subtests) -> None:
    rows: list[tuple[list[str], str | None]] = [
        (["actioncable-v1-json, actioncable-unsupported"], "actioncable-v1-json"),
        (["actioncable-v1-ext-json"], "actioncable-v1-ext-json"),
        (["actioncable-v1-ext-json, anycable-token.abc"], "actioncable-v1-ext-json"),
        (["actioncable-v1-ext-json,actioncable-v1-json"], "actioncable-v1-json"),
        (["actioncable-v1-ext-json", "actioncable-v1-json"], "actioncable-v1-json"),
        (["actioncable-unsupported"], None),
        ([], None),
    ]
    for lines, chosen in rows:
        with subtests.test(lines=lines, chosen=chosen):
            assert chosen_subprotocol(offered_subprotocols(lines)) == chosen


def test_token_is_read_from_header_then_subprotocol_then_query() -> None:
    offered = ["actioncable-v1-ext-json", "anycable-token.b"]
    assert find_token("jid", {"x-jid": "a"}, {"jid": "c"}, offered) == "a"
    assert find_token("jid", {}, {"jid": "c"}, offered) == "b"
    assert find_token("jid", {}, {"jid": "c"}) == "c"
    assert find_token("jid", {}, {}) == ""


def test_client_options_are_read_from_the_request() -> None:
    value = {"sid": "a", "pi": "5", "ptp": "ms", "reconnect_in": "1"}
    assert client_options({}, value) == ClientOptions("a", 5.0, 1000, True)
    assert client_options({"x-anycable-restore-sid": "b"}, value).former_sid == "b"


def test_missing_or_invalid_options_use_the_defaults(subtests: pytest.Subtests) -> None:
    rows: list[dict[str, str]] = [{}, {"pi": "often", "ptp": "minutes", "reconnect_in": "yes"}]
    for params in rows:
        with subtests.test(params=params):
            assert client_options({}, params) == ClientOptions()


def test_ping_interval_is_bounded(subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, float]] = [("-5", 0), ("0", 0), ("9" * 400, 3600)]
    for value, seconds in rows:
        with subtests.test(value=value, seconds=seconds):
            assert client_options({}, {"pi": value}).ping_interval == seconds


def test_origin_is_allowed_by_host_or_suffix(subtests: pytest.Subtests) -> None:
    rows: list[tuple[str | None, bool]] = [
        ("https://example.com", True),
        ("https://EXAMPLE.com", True),
        ("http://app.example.org:3000", True),
        ("https://a.b.example.net", True),
        ("https://example.net", False),
        ("https://evilexample.com", False),
        ("https://example.com.evil.org", False),
        ("null", False),
        ("http://[", False),
        ("", False),
    ]
    for origin, allowed in rows:
        with subtests.test(origin=origin, allowed=allowed):
            assert AllowedOrigins(["example.com", "app.example.org:3000", "*.example.net"])(origin) is allowed


def test_request_without_an_origin_is_allowed_unless_one_is_required() -> None:
    refusals: Counter[str] = Counter()
    assert AllowedOrigins(["example.com"], refusals=refusals)(None)
    assert not refusals
    assert not AllowedOrigins(["example.com"], required=True, refusals=refusals)(None)
    assert refusals == {"origin": 1}


def test_every_origin_is_allowed_without_a_list() -> None:
    assert AllowedOrigins([])(None)


def test_star_allows_every_origin_but_none_is_refused_if_required() -> None:
    for required in (False, True):
        origins = AllowedOrigins(["*", "example.com"], required=required)
        assert origins.everyone
        assert origins("https://evil.example")
        assert origins(None) is not required
    assert not AllowedOrigins(["example.com"]).everyone


def test_token_parameter_name_is_case_insensitive_in_the_header() -> None:
    assert find_token("My-Token", {"x-my-token": "t"}, {}) == "t"
    assert find_token("My-Token", {}, {"My-Token": "t"}) == "t"
