"""Parses the session options of an HTTP request: subprotocol, token, origin. Pure, shared by all transports."""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from urllib.parse import parse_qsl, urlsplit

from ropewalk.model.refusals import Refusal
from ropewalk.model.sessions import ClientOptions

logger = logging.getLogger("ropewalk.handshake")

HEAD_END = b"\r\n\r\n"
"""The end of the head of an HTTP request."""

BASE, EXTENDED = "actioncable-v1-json", "actioncable-v1-ext-json"
SUBPROTOCOLS = (BASE, EXTENDED)  # the server's order decides: a client that offers both gets the base protocol
TOKEN_PREFIX = "anycable-token."
POSITIONS_PARAM = "positions"
RESTORE_HEADER = "x-anycable-restore-sid"
PING_UNITS = {"s": 1, "ms": 1_000, "ns": 1_000_000_000}
"""Units of ping timestamps that a client may choose: by name, how many make a second."""

MAX_PING_INTERVAL_SECONDS = 3600


def offered_subprotocols(lines: Sequence[str]) -> list[str]:
    return [name.strip() for line in lines for name in line.split(",")]


def chosen_subprotocol(offered: Sequence[str]) -> str | None:
    """None without a common subprotocol. Then the session uses the base protocol, and the response names none."""
    for name in SUBPROTOCOLS:
        if name in offered:
            return name
    return None


def query_params(query: str) -> dict[str, str]:
    """Of repeated names, the last one counts."""
    if not query:
        return {}
    if "%" in query or "+" in query:
        return dict(parse_qsl(query, keep_blank_values=True))
    pairs = (pair.partition("=") for pair in query.split("&") if pair)
    return {name: value for name, _, value in pairs}


def find_token(param: str, headers: Mapping[str, str], params: Mapping[str, str], offered: Sequence[str] = ()) -> str:
    """The token from the header, else from the subprotocol, else from the query; "" without one."""
    if in_header := headers.get(f"x-{param.lower()}"):
        return in_header
    for name in offered:
        if name.startswith(TOKEN_PREFIX):
            return name.removeprefix(TOKEN_PREFIX) or params.get(param, "")
    return params.get(param, "")


def client_options(headers: Mapping[str, str], params: Mapping[str, str]) -> ClientOptions:
    """The session to restore (header, or `sid`), pings (`pi` and `ptp`) and `reconnect_in`. Invalid values are ignored."""
    former_sid = headers.get(RESTORE_HEADER, "")
    if not params:
        return ClientOptions(former_sid)
    return ClientOptions(
        former_sid=former_sid or params.get("sid", ""),
        ping_interval=_ping_interval(params.get("pi", "")),
        ping_units=PING_UNITS.get(params.get("ptp", "")),
        reconnect_in=params.get("reconnect_in") == "1",
    )


def _ping_interval(text: str) -> float | None:
    if not text:
        return None
    try:
        # Bounded before the conversion: an integer may exceed the range of floats.
        return float(min(max(int(text), 0), MAX_PING_INTERVAL_SECONDS))
    except ValueError:
        return None


def asks_positions(params: Mapping[str, str]) -> bool:
    """Whether a client requests the positions of its streams, an extension of the reference protocol."""
    return params.get(POSITIONS_PARAM) == "1"


class AllowedOrigins:
    """The hosts (with a port, unless it is the default) whose pages may connect; `*.example.com` matches as a suffix.

    Browsers send the origin of a page, and the page cannot change it. Other programs send none, or any value: without an
    origin they are accepted, unless it is `required`. Refusals are counted in `refusals`. `everyone`: all origins are allowed.
    """

    def __init__(self, hosts: Sequence[str], required: bool = False, refusals: Counter[str] | None = None) -> None:
        self.everyone = not hosts or "*" in hosts
        self._unlisted = not hosts
        self._required = required
        self._refusals = Counter[str]() if refusals is None else refusals
        self._exact = frozenset(host.lower() for host in hosts if not host.startswith("*"))
        self._suffixes = tuple(host[1:].lower() for host in hosts if host.startswith("*"))

    def __call__(self, origin: str | None) -> bool:
        if self._unlisted or (origin is None and not self._required):
            return True
        if origin is not None and self._listed(origin):
            return True
        self._refusals[Refusal.ORIGIN] += 1
        logger.debug("origin not allowed", extra={"origin": origin})
        return False

    def _listed(self, origin: str) -> bool:
        try:
            host = urlsplit(origin).netloc.lower()
        except ValueError:  # not a URL at all
            return False
        return host in self._exact or (bool(host) and bool(self._suffixes) and host.endswith(self._suffixes))
