"""The endpoints of a server, derived from one address."""

import pytest

from ropewalk.client.addresses import Addresses, addresses
from ropewalk.model.errors import UserMistake


def test_endpoints_are_derived_from_the_address(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, str, str]] = [
        ("http://127.0.0.1:8080", "ws://127.0.0.1:8080/cable", "http://127.0.0.1:8080"),
        ("http://127.0.0.1:8080/", "ws://127.0.0.1:8080/cable", "http://127.0.0.1:8080"),
        ("https://example.com", "wss://example.com/cable", "https://example.com"),
        ("ws://example.com/live", "ws://example.com/live", "http://example.com"),
        ("wss://example.com:444/cable?x=1", "wss://example.com:444/cable?x=1", "https://example.com:444"),
    ]
    for given, cable, base in cases:
        with subtests.test(given=given):
            assert addresses(given) == Addresses(cable, base)


def test_tcp_address_is_rejected_with_a_hint(subtests: pytest.Subtests) -> None:
    for scheme in ["tcp", "tls"]:
        message = f"write http:// or https:// in the place of {scheme}://"
        with subtests.test(scheme=scheme), pytest.raises(UserMistake, match=message):
            addresses(f"{scheme}://127.0.0.1:8080")


def test_invalid_address_is_rejected(subtests: pytest.Subtests) -> None:
    for given in ["", "localhost:8080", "ftp://example.com", "http://", "http://[", "127.0.0.1"]:
        with subtests.test(given=given), pytest.raises(UserMistake):
            addresses(given)
