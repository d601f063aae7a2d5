"""What an HTTP request says about the session it wants."""

from collections import Counter

import pytest

from ropewalk.model.sessions import ClientOptions
from ropewalk.protocol.handshake import AllowedOrigins, chosen_subprotocol, client_options, offered_subprotocols, token_of
from ropewalk.protocol.websocket_frame import PING_FRAME, close_frame, readable, text_frame


@pytest.mark.parametrize(
    ("lines", "chosen"),
    [
        (["actioncable-v1-json, actioncable-unsupported"], "actioncable-v1-json"),
        (["actioncable-v1-ext-json"], "actioncable-v1-ext-json"),
        (["actioncable-v1-ext-json, anycable-token.abc"], "actioncable-v1-ext-json"),
        (["actioncable-v1-ext-json,actioncable-v1-json"], "actioncable-v1-json"),
        (["actioncable-v1-ext-json", "actioncable-v1-json"], "actioncable-v1-json"),
        (["actioncable-unsupported"], None),
        ([], None),
    ],
)
def test_the_servers_order_of_subprotocols_decides(lines: list[str], chosen: str | None) -> None:
    assert chosen_subprotocol(offered_subprotocols(lines)) == chosen


def test_a_token_is_looked_for_in_header_then_subprotocol_then_query() -> None:
    offered = ["actioncable-v1-ext-json", "anycable-token.b"]
    assert token_of("jid", {"x-jid": "a"}, {"jid": "c"}, offered) == "a"
    assert token_of("jid", {}, {"jid": "c"}, offered) == "b"
    assert token_of("jid", {}, {"jid": "c"}) == "c"
    assert token_of("jid", {}, {}) == ""


def test_a_client_says_in_its_request_what_it_wants_of_the_session() -> None:
    asked = {"sid": "a", "pi": "5", "ptp": "ms", "reconnect_in": "1"}
    assert client_options({}, asked) == ClientOptions("a", 5.0, 1000, True)
    assert client_options({"x-anycable-restore-sid": "b"}, asked).former_sid == "b"


@pytest.mark.parametrize("params", [{}, {"pi": "often", "ptp": "minutes", "reconnect_in": "yes"}])
def test_what_a_client_does_not_say_or_gets_wrong_is_left_to_the_server(params: dict[str, str]) -> None:
    assert client_options({}, params) == ClientOptions()


@pytest.mark.parametrize(("asked", "seconds"), [("-5", 0), ("0", 0), ("9" * 400, 3600)])
def test_the_ping_interval_is_bounded(asked: str, seconds: float) -> None:
    assert client_options({}, {"pi": asked}).ping_interval == seconds


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
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
    ],
)
def test_an_origin_is_allowed_by_host_or_by_suffix(origin: str | None, allowed: bool) -> None:
    assert AllowedOrigins(["example.com", "app.example.org:3000", "*.example.net"])(origin) is allowed


def test_programs_tell_no_origin_and_are_let_in_unless_one_is_required() -> None:
    refusals: Counter[str] = Counter()
    assert AllowedOrigins(["example.com"], refusals=refusals)(None)
    assert not refusals
    assert not AllowedOrigins(["example.com"], required=True, refusals=refusals)(None)
    assert refusals == {"origin": 1}


def test_without_a_list_every_origin_is_allowed() -> None:
    assert AllowedOrigins([])(None)


@pytest.mark.parametrize(
    ("size", "header"), [(125, b"\x81\x7d"), (126, b"\x81\x7e\x00\x7e"), (65536, b"\x81\x7f" + (65536).to_bytes(8))]
)
def test_the_length_of_a_text_frame_takes_as_many_bytes_as_it_needs(size: int, header: bytes) -> None:
    assert text_frame(b"x" * size) == header + b"x" * size


def test_a_close_frame_never_carries_more_than_a_control_frame_may() -> None:
    frame = close_frame(1007, "ü" * 100)
    assert frame[1] == len(frame) - 2 <= 125
    assert frame[4:].decode() == "ü" * 61


def test_a_token_is_found_in_its_header_however_the_parameter_is_written() -> None:
    assert token_of("My-Token", {"x-my-token": "t"}, {}) == "t"
    assert token_of("My-Token", {}, {"My-Token": "t"}) == "t"


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65_535, 65_536])
def test_frames_are_readable_again_for_the_log_one_a_line(size: int) -> None:
    text = "ä" * (size // 2) + "x" * (size % 2)

    assert readable(text_frame(text.encode()) + PING_FRAME + close_frame(1001, "bye")) == f"{text}\n(ping)\n(close)\x03�bye"
    assert readable(text.encode()) == text
