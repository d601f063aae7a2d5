"""Whose connection it is, when proxies stand before the server: only what trusted ones say counts."""

import pytest

from ropewalk.model.errors import UserMistake
from ropewalk.protocol.proxies import Peer, TrustedProxies

PROXIES = TrustedProxies(["10.0.0.0/8", "192.0.2.1", "2001:db8::/32"])


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        ("10.0.0.1", "203.0.113.9", "203.0.113.9"),
        ("10.0.0.1", "6.6.6.6, 203.0.113.9, 10.1.1.1", "203.0.113.9"),
        ("10.0.0.1", "203.0.113.9:51234", "203.0.113.9"),
        ("10.0.0.1", "[2001:4860::1]:443, 192.0.2.1", "2001:4860::1"),
        ("2001:db8::7", "2001:4860::1", "2001:4860::1"),
        ("::ffff:10.0.0.1", "203.0.113.9", "203.0.113.9"),
        ("10.0.0.1", "10.2.2.2, 10.1.1.1", "10.2.2.2"),
        ("10.0.0.1", "", "10.0.0.1"),
        ("10.0.0.1", "203.0.113.9, nonsense", "10.0.0.1"),
        ("10.0.0.1", "203.0.113.9, unknown, 10.1.1.1", "10.1.1.1"),
        ("203.0.113.7", "6.6.6.6", "203.0.113.7"),
        ("", "6.6.6.6", ""),
    ],
)
def test_the_client_is_the_last_address_that_is_no_trusted_proxy(peer: str, forwarded: str, client: str) -> None:
    assert PROXIES.client(Peer(peer), "http", {"x-forwarded-for": forwarded})[0] == client


@pytest.mark.parametrize(
    ("peer", "said", "scheme"),
    [
        ("10.0.0.1", "https", "https"),
        ("10.0.0.1", "HTTPS", "https"),
        ("10.0.0.1", "wss", "https"),
        ("10.0.0.1", "http, https", "https"),
        ("10.0.0.1", "gopher", "http"),
        ("10.0.0.1", "", "http"),
        ("203.0.113.7", "https", "http"),
    ],
)
def test_the_scheme_is_the_proxys_word(peer: str, said: str, scheme: str) -> None:
    assert PROXIES.client(Peer(peer), "http", {"x-forwarded-proto": said})[1] == scheme


def test_an_address_of_the_proxy_header_is_believed_of_a_trusted_proxy_and_ends_the_search() -> None:
    headers = {"x-forwarded-for": "6.6.6.6", "x-forwarded-proto": "https"}
    assert PROXIES.client(Peer("10.0.0.1", "203.0.113.9"), "http", headers) == ("203.0.113.9", "https")
    assert PROXIES.client(Peer("10.0.0.1", "192.0.2.1"), "http", headers) == ("6.6.6.6", "https")


def test_a_unix_socket_is_trusted_by_its_word() -> None:
    assert TrustedProxies(["unix"]).client(Peer(""), "http", {"x-forwarded-for": "203.0.113.9"})[0] == "203.0.113.9"


def test_without_proxies_nobody_is_trusted() -> None:
    headers = {"x-forwarded-for": "6.6.6.6", "x-forwarded-proto": "https"}
    assert TrustedProxies().client(Peer("127.0.0.1"), "http", headers) == ("127.0.0.1", "http")


@pytest.mark.parametrize("wrong", ["proxy.example.com", "10.0.0.1/8", "300.0.0.1", ""])
def test_what_is_no_network_is_refused(wrong: str) -> None:
    with pytest.raises(UserMistake, match="--trusted_proxies"):
        TrustedProxies([wrong])
