"""One address in, every endpoint of the server out."""

import pytest

from ropewalk.client.addresses import Addresses, addresses
from ropewalk.model.errors import UserMistake


@pytest.mark.parametrize(
    ("given", "cable", "base"),
    [
        ("http://127.0.0.1:8080", "ws://127.0.0.1:8080/cable", "http://127.0.0.1:8080"),
        ("http://127.0.0.1:8080/", "ws://127.0.0.1:8080/cable", "http://127.0.0.1:8080"),
        ("https://example.com", "wss://example.com/cable", "https://example.com"),
        ("ws://example.com/live", "ws://example.com/live", "http://example.com"),
        ("wss://example.com:444/cable?x=1", "wss://example.com:444/cable?x=1", "https://example.com:444"),
    ],
)
def test_the_endpoints_follow_from_the_address(given: str, cable: str, base: str) -> None:
    assert addresses(given) == Addresses(cable, base)


@pytest.mark.parametrize("scheme", ["tcp", "tls"])
def test_an_address_over_tcp_is_told_what_to_write_for_http(scheme: str) -> None:
    with pytest.raises(UserMistake, match=f"write http:// or https:// in the place of {scheme}://"):
        addresses(f"{scheme}://127.0.0.1:8080")


@pytest.mark.parametrize("given", ["", "localhost:8080", "ftp://example.com", "http://", "http://[", "127.0.0.1"])
def test_what_is_no_address_is_the_users_mistake(given: str) -> None:
    with pytest.raises(UserMistake):
        addresses(given)
