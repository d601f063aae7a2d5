"""What an HTTP request says about the session it wants: subprotocol, token, origin. Pure, shared by every transport."""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from urllib.parse import parse_qsl, urlsplit

from ropewalk.model.refusals import Refusal
from ropewalk.model.sessions import ClientOptions

logger = logging.getLogger("ropewalk.handshake")

HEAD_END = b"\r\n\r\n"
"""What ends the head of an HTTP request."""

BASE, EXTENDED = "actioncable-v1-json", "actioncable-v1-ext-json"
SUBPROTOCOLS = (BASE, EXTENDED)  # the server's order decides: a client that offers both gets the base protocol
TOKEN_PREFIX = "anycable-token."
POSITIONS_PARAM = "positions"
RESTORE_HEADER = "x-anycable-restore-sid"
PING_UNITS = {"s": 1, "ms": 1_000, "ns": 1_000_000_000}
"""The units of a ping's timestamp that a client may choose, by name, per second."""

LONGEST_PING_INTERVAL = 3600


def offered_subprotocols(lines: Sequence[str]) -> list[str]:
    return [name.strip() for line in lines for name in line.split(",")]


def chosen_subprotocol(offered: Sequence[str]) -> str | None:
    """None: nothing in common. The connection is accepted all the same, as a base session without an echo."""
    for name in SUBPROTOCOLS:
        if name in offered:
            return name
    return None


def query_params(query: str) -> dict[str, str]:
    """Of repeated names the last wins."""
    if not query:
        return {}
    if "%" in query or "+" in query:
        return dict(parse_qsl(query, keep_blank_values=True))
    pairs = (pair.partition("=") for pair in query.split("&") if pair)
    return {name: value for name, _, value in pairs}


def token_of(param: str, headers: Mapping[str, str], params: Mapping[str, str], offered: Sequence[str] = ()) -> str:
    """The header wins over the subprotocol, which wins over the query; "" when there is none."""
    if in_header := headers.get(f"x-{param.lower()}"):
        return in_header
    for name in offered:
        if name.startswith(TOKEN_PREFIX):
            return name.removeprefix(TOKEN_PREFIX) or params.get(param, "")
    return params.get(param, "")


def client_options(headers: Mapping[str, str], params: Mapping[str, str]) -> ClientOptions:
    """The session to restore (header, or `sid`), pings (`pi` and `ptp`) and `reconnect_in`. Wrong values count as absent."""
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
        # Bounded before it becomes a float: an integer may be larger than any of these.
        return float(min(max(int(text), 0), LONGEST_PING_INTERVAL))
    except ValueError:
        return None


def asks_positions(params: Mapping[str, str]) -> bool:
    """Whether a client wants to be told the positions of its streams, beyond what clients of the reference know."""
    return params.get(POSITIONS_PARAM) == "1"


class AllowedOrigins:
    """Hosts (with port, if it is not the usual one) a browser's page may come from; `*.example.com` matches as a suffix.

    Browsers tell the origin of a page and do not let the page change it. Programs tell none, or whatever they like: they are
    let in, unless `required`. What is refused is counted in `refusals`. `everyone`: pages of every origin may come.
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
