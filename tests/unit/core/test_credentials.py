"""Fingerprints of what a client shows: the same for the same, and nothing can be read from them."""

import pytest

from ropewalk.core.credentials import Credentials
from ropewalk.core.forwarding import Forwarding
from ropewalk.model.sessions import ConnectRequest

CREDENTIALS = Credentials(b"key", Forwarding(("cookie", "x-forwarded-for", "authorization")))


def request(headers: dict[str, str] | None = None, remote: str = "", **params: str) -> ConnectRequest:
    return ConnectRequest("http://x/cable", "/cable", headers or {}, params, remote)


def test_what_is_shown_to_the_server_alone_and_where_a_client_is_say_nothing() -> None:
    assert CREDENTIALS(request()) == ""
    elsewhere = request({"x-forwarded-for": "10.0.0.1", "accept": "*/*"}, "10.0.0.2", sid="s", pi="3", ptp="ms")
    assert CREDENTIALS(elsewhere) == ""


@pytest.mark.parametrize(
    "other",
    [
        request({"cookie": "a=2"}, token="t"),
        request({"cookie": "a=1"}, token="u"),
        request({"cookie": "a=1"}),
        request(token="t"),
        request({"cookie": "a=1", "authorization": "x"}, token="t"),
        request({"authorization": "a=1"}, token="t"),
    ],
)
def test_whatever_else_differs_makes_another_fingerprint(other: ConnectRequest) -> None:
    shown = request({"cookie": "a=1"}, token="t")
    assert CREDENTIALS(shown) == CREDENTIALS(request({"cookie": "a=1"}, "10.0.0.9", token="t", sid="s"))
    assert CREDENTIALS(other) != CREDENTIALS(shown)


def test_another_key_makes_another_fingerprint_and_none_shows_what_it_was_made_of() -> None:
    shown = request({"cookie": "secret"})
    assert Credentials(b"other", Forwarding(("cookie",)))(shown) != CREDENTIALS(shown)
    assert "secret" not in CREDENTIALS(shown)
