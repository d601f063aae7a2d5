"""The header of the PROXY protocol, versions 1 and 2, in any fragmentation."""

import pytest

from ropewalk.model.errors import BadRequest
from ropewalk.protocol.proxies import V2_SIGNATURE, split_proxy_header

REST = b"GET / HTTP/1.1\r\n\r\n"


def version_2(command: int, family: int, addresses: bytes) -> bytes:
    return V2_SIGNATURE + bytes([command, family]) + len(addresses).to_bytes(2) + addresses


IPV4 = bytes([203, 0, 113, 9, 127, 0, 0, 1, 1, 2, 3, 4])
IPV6 = bytes.fromhex("20010db8000000000000000000000001") + bytes(16) + bytes(4)

HEADERS = {
    b"PROXY TCP4 203.0.113.9 127.0.0.1 1 2\r\n": "203.0.113.9",
    b"PROXY TCP6 2001:db8::1 ::1 1 2\r\n": "2001:db8::1",
    b"PROXY UNKNOWN\r\n": "",
    b"PROXY UNKNOWN ffff:f...f:ffff ffff:f...f:ffff 65535 65535\r\n": "",
    version_2(0x21, 0x11, IPV4): "203.0.113.9",
    version_2(0x21, 0x11, IPV4 + b"\x03\x00\x01x"): "203.0.113.9",  # with an extension, which is skipped
    version_2(0x21, 0x21, IPV6): "2001:db8::1",
    version_2(0x20, 0x00, b""): "",  # the proxy's own connection: a health check
    version_2(0x21, 0x31, bytes(216)): "",  # over a Unix socket
}


def test_source_address_is_found_once_the_header_is_complete(subtests: pytest.Subtests) -> None:
    for header, address in HEADERS.items():
        with subtests.test(header=header, address=address):
            for length in range(len(header)):
                assert split_proxy_header(header[:length]) is None
            assert split_proxy_header(header + REST) == (address, REST)


def test_invalid_header_is_refused(subtests: pytest.Subtests) -> None:
    rows: list[bytes] = [
        REST,
        b"PROXI ",
        b"PROXY TCP4 nonsense 127.0.0.1 1 2\r\n",
        b"PROXY TCP4 203.0.113.9\r\n",
        b"PROXY TCP9 203.0.113.9 127.0.0.1 1 2\r\n",
        b"PROXY \xff\xfe\r\n",
        b"PROXY " + b"x" * 200,
        version_2(0x31, 0x11, IPV4),
        version_2(0x2F, 0x11, IPV4),
        V2_SIGNATURE + b"\x21\x11\xff\xff",
    ]
    for wrong in rows:
        with subtests.test(wrong=wrong), pytest.raises(BadRequest):
            split_proxy_header(wrong)
