"""Protocols of the shared port recognise their connections by the first bytes."""

from collections import Counter

import pytest

from ropewalk.adapters.endpoints.admission import ConnectionLimits
from ropewalk.adapters.endpoints.http_connection import MAX_HEAD_BYTES
from ropewalk.adapters.endpoints.shared_port import Match, SharedPort
from ropewalk.adapters.endpoints.websocket import WebSocketEndpoint, WebSocketOptions
from ropewalk.protocol.proxies import TrustedProxies

GET = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"
UPGRADE = b"GET /cable HTTP/1.1\r\nhost: x\r\nUpgrade: WebSocket\r\n\r\n"
YES, NO, UNDECIDED = Match.YES, Match.NO, Match.UNDECIDED

FIRST_BYTES = {  # matches of TLS, WebSocket and HTTP
    b"": (NO, UNDECIDED, UNDECIDED),
    b"O": (NO, UNDECIDED, UNDECIDED),
    b"OTHER": (NO, UNDECIDED, UNDECIDED),
    GET[:-1]: (NO, UNDECIDED, UNDECIDED),
    GET: (NO, NO, YES),
    UPGRADE: (NO, YES, YES),
    GET + UPGRADE: (NO, NO, YES),
    b"GET /?upgrade:websocket HTTP/1.1\r\n\r\n": (NO, NO, YES),
    b"x" * MAX_HEAD_BYTES + b"\r\n\r\n": (NO, NO, YES),
    b"x" * MAX_HEAD_BYTES + b"x\r\n\r\n": (NO, NO, NO),
    b"\x16\x03\x01\x02\x00\x01": (YES, UNDECIDED, UNDECIDED),
}


async def test_each_protocol_recognises_its_first_bytes(subtests: pytest.Subtests) -> None:
    proxies = TrustedProxies()
    sockets = WebSocketEndpoint(lambda *_: None, lambda _: True, proxies, WebSocketOptions())  # type: ignore[arg-type]
    protocols = SharedPort(sockets, ConnectionLimits(), Counter(), proxies).protocols
    for data, matches in FIRST_BYTES.items():
        with subtests.test(data=data[-40:]):
            assert tuple(protocol.detect(data) for protocol in protocols) == matches
