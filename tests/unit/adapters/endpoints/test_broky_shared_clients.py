"""The kind of a client over TCP, by its token."""

from collections import Counter

import pytest

from ropewalk.adapters.endpoints.broky_shared import BrokyClients, ClientKind
from ropewalk.adapters.endpoints.http_guard import KeyGuard
from ropewalk.protocol.proxies import Peer, TrustedProxies


def clients(*keys: str) -> BrokyClients:
    return BrokyClients([KeyGuard(key, Counter()) for key in keys], TrustedProxies(()))


def test_client_with_a_publishing_key_is_a_publisher(subtests: pytest.Subtests) -> None:
    rows: list[tuple[tuple[str, ...], str, ClientKind, bool]] = [
        (("secret",), "secret", ClientKind.PUBLISHER, True),
        (("other", "secret"), "secret", ClientKind.PUBLISHER, True),
        (("secret",), "a JWT", ClientKind.SUBSCRIBER, False),
        (("secret",), "", ClientKind.SUBSCRIBER, False),
        ((), "", ClientKind.SUBSCRIBER, False),
        (("",), "", ClientKind.SUBSCRIBER_THAT_MAY_PUSH, True),
        (("", "secret"), "a JWT", ClientKind.SUBSCRIBER_THAT_MAY_PUSH, True),
        (("", "secret"), "secret", ClientKind.PUBLISHER, True),
    ]
    for keys, token, kind, may_push in rows:
        with subtests.test(keys=keys, token=token, kind=kind, may_push=may_push):
            assert clients(*keys).classify(token) is kind
            assert kind.may_push is may_push


def test_connect_request_has_token_and_address() -> None:
    request = clients().request("a JWT", Peer("192.0.2.1"))
    assert (request.token, request.remote) == ("a JWT", "192.0.2.1")
