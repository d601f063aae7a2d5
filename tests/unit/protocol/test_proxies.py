"""The client address behind proxies: only headers of trusted proxies are used."""

import pytest

from ropewalk.model.errors import UserMistake
from ropewalk.protocol.proxies import Peer, TrustedProxies

PROXIES = TrustedProxies(["10.0.0.0/8", "192.0.2.1", "2001:db8::/32"])


def test_client_is_the_last_address_that_is_not_a_trusted_proxy(subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, str, str]] = [
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
    ]
    for peer, forwarded, client in rows:
        with subtests.test(peer=peer, forwarded=forwarded, client=client):
            assert PROXIES.client(Peer(peer), "http", {"x-forwarded-for": forwarded})[0] == client


def test_scheme_is_taken_from_a_trusted_proxy(subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, str, str]] = [
        ("10.0.0.1", "https", "https"),
        ("10.0.0.1", "HTTPS", "https"),
        ("10.0.0.1", "wss", "https"),
        ("10.0.0.1", "http, https", "https"),
        ("10.0.0.1", "gopher", "http"),
        ("10.0.0.1", "", "http"),
        ("203.0.113.7", "https", "http"),
    ]
    for peer, forwarded, scheme in rows:
        with subtests.test(peer=peer, forwarded=forwarded, scheme=scheme):
            assert PROXIES.client(Peer(peer), "http", {"x-forwarded-proto": forwarded})[1] == scheme


def test_proxy_header_address_of_a_trusted_proxy_is_used_before_x_forwarded_for() -> None:
    headers = {"x-forwarded-for": "6.6.6.6", "x-forwarded-proto": "https"}
    assert PROXIES.client(Peer("10.0.0.1", "203.0.113.9"), "http", headers) == ("203.0.113.9", "https")
    assert PROXIES.client(Peer("10.0.0.1", "192.0.2.1"), "http", headers) == ("6.6.6.6", "https")


def test_unix_socket_can_be_trusted() -> None:
    assert TrustedProxies(["unix"]).client(Peer(""), "http", {"x-forwarded-for": "203.0.113.9"})[0] == "203.0.113.9"


def test_no_proxy_is_trusted_by_default() -> None:
    headers = {"x-forwarded-for": "6.6.6.6", "x-forwarded-proto": "https"}
    assert TrustedProxies().client(Peer("127.0.0.1"), "http", headers) == ("127.0.0.1", "http")


def test_invalid_network_is_refused(subtests: pytest.Subtests) -> None:
    rows: list[str] = ["proxy.example.com", "10.0.0.1/8", "300.0.0.1", ""]
    for wrong in rows:
        with subtests.test(wrong=wrong), pytest.raises(UserMistake, match="--trusted_proxies"):
            TrustedProxies([wrong])
