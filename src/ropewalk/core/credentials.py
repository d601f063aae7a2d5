"""Who a client is: the headers that are forwarded to the application, spellings of its identity, and a fingerprint of its
credentials: cookies, other headers, and the query of its URL.

Invariant: a fingerprint does not reveal the credentials, and cannot be made without the key.
"""

import hmac
from collections.abc import Callable

import msgspec

from ropewalk.model.sessions import ConnectRequest

REMOTE = "REMOTE_ADDR"
COOKIE = "cookie"


class Forwarding:
    """The non-empty headers of a request that are forwarded to the application.

    `cookies`: names to forward, all if empty. `token`: the header under which a JWT is forwarded, "" for none."""

    def __init__(self, headers: tuple[str, ...], cookies: tuple[str, ...] = (), token: str = "") -> None:
        self._headers = tuple(name.lower() for name in headers)
        self._cookies = frozenset(cookies)
        self._token = token

    def __call__(self, request: ConnectRequest) -> dict[str, str]:
        found = {name: request.headers.get(name, "") for name in self._headers}
        if self._cookies and COOKIE in found:
            found[COOKIE] = self._select_cookies(found[COOKIE])
        if self._token:
            found[self._token] = request.token
        found[REMOTE] = request.remote
        return {name: value for name, value in found.items() if value}

    def _select_cookies(self, header: str) -> str:
        pairs = (pair.strip() for pair in header.split(";"))
        return "; ".join(pair for pair in pairs if pair.partition("=")[0] in self._cookies)


def spellings(identifier: str) -> list[str]:
    """One identity as different JSON libraries write it: unchanged, without spaces, with a space after each `,` and `:`."""
    found = [identifier]
    if identifier[:1] in ("{", "["):
        try:
            found += [msgspec.json.format(identifier, indent=width) for width in (-1, 0)]
        except msgspec.MsgspecError:
            return found  # it only looks like JSON
    return list(dict.fromkeys(found))


SERVER_PARAMS = frozenset({"sid", "pi", "ptp"})
"""Query parameters for the server: they do not identify the client."""

ADDRESS_HEADERS = frozenset({"REMOTE_ADDR", "forwarded", "x-forwarded-for", "x-forwarded-port", "x-real-ip"})
"""Headers that change with the client's network."""


class Credentials:
    """`forward` selects the headers that the application receives. Another key changes every fingerprint."""

    def __init__(self, key: bytes, forward: Callable[[ConnectRequest], dict[str, str]]) -> None:
        self._key = key
        self.forward = forward

    def __call__(self, request: ConnectRequest) -> str:
        """Returns the empty string for a client without credentials."""
        headers = sorted((name, value) for name, value in self.forward(request).items() if name not in ADDRESS_HEADERS)
        params = sorted((name, value) for name, value in request.params.items() if name not in SERVER_PARAMS)
        if not headers and not params:
            return ""
        return hmac.digest(self._key, msgspec.json.encode([headers, params]), "sha256").hex()


def same(one: str, other: str) -> bool:
    return hmac.compare_digest(one, other)
