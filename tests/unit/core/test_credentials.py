"""Fingerprints of client credentials: equal for equal credentials, and not reversible."""

import pytest

from ropewalk.core.credentials import Credentials, Forwarding, spellings
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


CREDENTIALS = Credentials(b"key", Forwarding(("cookie", "x-forwarded-for", "authorization")))


def request(headers: dict[str, str] | None = None, remote: str = "", **params: str) -> ConnectRequest:
    return ConnectRequest("http://x/cable", "/cable", headers or {}, params, remote)


def test_server_parameters_and_client_addresses_do_not_change_the_fingerprint() -> None:
    assert CREDENTIALS(request()) == ""
    elsewhere = request({"x-forwarded-for": "10.0.0.1", "accept": "*/*"}, "10.0.0.2", sid="s", pi="3", ptp="ms")
    assert CREDENTIALS(elsewhere) == ""


def test_different_credentials_change_the_fingerprint(subtests: pytest.Subtests) -> None:
    rows: list[ConnectRequest] = [
        request({"cookie": "a=2"}, token="t"),
        request({"cookie": "a=1"}, token="u"),
        request({"cookie": "a=1"}),
        request(token="t"),
        request({"cookie": "a=1", "authorization": "x"}, token="t"),
        request({"authorization": "a=1"}, token="t"),
    ]
    for other in rows:
        with subtests.test(other=other):
            shown = request({"cookie": "a=1"}, token="t")
            assert CREDENTIALS(shown) == CREDENTIALS(request({"cookie": "a=1"}, "10.0.0.9", token="t", sid="s"))
            assert CREDENTIALS(other) != CREDENTIALS(shown)


def test_fingerprint_depends_on_the_key_and_does_not_contain_the_secret() -> None:
    shown = request({"cookie": "secret"})
    assert Credentials(b"other", Forwarding(("cookie",)))(shown) != CREDENTIALS(shown)
    assert "secret" not in CREDENTIALS(shown)
