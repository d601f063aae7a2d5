"""Selects the headers of a connection that are forwarded to the application: those in the settings that are not empty."""

from ropewalk.model.sessions import ConnectRequest

REMOTE = "REMOTE_ADDR"
COOKIE = "cookie"


class Forwarding:
    """`cookies`: names to forward, all if empty. `token`: the header under which a JWT is forwarded, "" for none."""

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
