"""Only headers named in the settings are forwarded to the application."""

from ropewalk.core.forwarding import Forwarding
from ropewalk.model.sessions import ConnectRequest

HEADERS = {"cookie": "a=1; b=2;c=3", "authorization": "secret", "origin": "http://x", "x-empty": ""}
REQUEST = ConnectRequest("http://x/cable", "/cable", HEADERS, {}, "10.0.0.7", "token")


def test_named_headers_and_the_address_are_forwarded() -> None:
    assert Forwarding(("Cookie",))(REQUEST) == {"cookie": HEADERS["cookie"], "REMOTE_ADDR": "10.0.0.7"}


def test_empty_and_missing_headers_are_left_out() -> None:
    assert Forwarding(("x-empty", "x-missing", "origin"))(REQUEST) == {"origin": "http://x", "REMOTE_ADDR": "10.0.0.7"}


def test_named_cookies_are_forwarded() -> None:
    assert Forwarding(("cookie",), ("a", "c"))(REQUEST)["cookie"] == "a=1; c=3"
    assert "cookie" not in Forwarding(("cookie",), ("z",))(REQUEST)


def test_token_is_forwarded_as_its_header() -> None:
    assert Forwarding((), (), "x-jid")(REQUEST) == {"x-jid": "token", "REMOTE_ADDR": "10.0.0.7"}
