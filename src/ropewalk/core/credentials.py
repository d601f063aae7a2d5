"""A fingerprint of the credentials that a client sends to the application: cookies, other headers, and the query of its URL.

Invariant: a fingerprint does not reveal what was sent, and cannot be made without the key.
"""

import hmac
from collections.abc import Callable

import msgspec

from ropewalk.model.sessions import ConnectRequest

OURS = frozenset({"sid", "pi", "ptp"})
"""Query parameters that are for the server: they say nothing of who comes."""

ADDRESSES = frozenset({"REMOTE_ADDR", "forwarded", "x-forwarded-for", "x-forwarded-port", "x-real-ip"})
"""Headers that change with the network a client is in, while it is the same client."""


class Credentials:
    """`forward` chooses the headers that the application sees. Another key makes every fingerprint another one."""

    def __init__(self, key: bytes, forward: Callable[[ConnectRequest], dict[str, str]]) -> None:
        self._key = key
        self.forward = forward

    def __call__(self, request: ConnectRequest) -> str:
        """The empty string for a client that shows nothing."""
        headers = sorted((name, value) for name, value in self.forward(request).items() if name not in ADDRESSES)
        params = sorted((name, value) for name, value in request.params.items() if name not in OURS)
        if not headers and not params:
            return ""
        return hmac.digest(self._key, msgspec.json.encode([headers, params]), "sha256").hex()


def same(one: str, other: str) -> bool:
    return hmac.compare_digest(one, other)
