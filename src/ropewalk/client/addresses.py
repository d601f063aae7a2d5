"""The endpoints of a server, from the one address that a user gives: `http://host:port`, or the full URL of the cable. Over
TCP it is `tcp://host:port`, or `tls://host:port`."""

from msgspec import Struct
from yarl import URL

from ropewalk.model.errors import UserMistake

CABLE_PATH = "/cable"
TCP_SCHEMES = {"tcp": False, "tls": True}
"""Of an address at which Broky is wanted, and whether TLS is spoken there."""

_OTHERS = {"tcp": "tls", "tls": "tcp", "http": "https", "https": "http"}
_SCHEMES = {"http": ("ws", "http"), "https": ("wss", "https"), "ws": ("ws", "http"), "wss": ("wss", "https")}


class Addresses(Struct, frozen=True):
    """`cable` is the WebSocket endpoint, `base` what the paths of the HTTP endpoints are appended to."""

    cable: str
    base: str


class TcpAddress(Struct, frozen=True):
    """Where Broky is spoken. `url` is what the user wrote."""

    url: str
    host: str
    port: int
    secure: bool

    @property
    def netloc(self) -> str:
        """Host and port as a URL has them."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def hint(self) -> str:
        """What to try where the server does not understand us: the same address without TLS, or with it."""
        other = _OTHERS[self.url.partition(":")[0].lower()]
        return f"if {'no TLS' if self.secure else 'TLS'} is spoken there, write {other}://{self.netloc}"


def is_tcp(url: str) -> bool:
    """Whether the user wants Broky at this address."""
    return url.partition(":")[0] in TCP_SCHEMES


def tcp_address(url: str) -> TcpAddress:
    """Of any address of a server, for all protocols are spoken on its one port. Raises UserMistake for what is none."""
    given = _parsed(url)
    secure = {**TCP_SCHEMES, "http": False, "https": True}.get(given.scheme)
    if secure is None or not given.host or not given.port:
        raise UserMistake(f"{url!r} is not a server's address; write it like tcp://127.0.0.1:8080")
    return TcpAddress(url, given.host, given.port, secure)


def require_http(url: str) -> None:
    """Raises UserMistake for an address at which Broky is wanted."""
    if is_tcp(url):
        raise UserMistake(f"this goes over HTTP: write http:// or https:// in the place of {url.partition(':')[0]}://")


def addresses(url: str) -> Addresses:
    """Raises UserMistake for what is no address of a server."""
    require_http(url)
    given = _parsed(url)
    if given.scheme not in _SCHEMES or not given.host:
        raise UserMistake(f"{url!r} is not a server's URL; write it like http://127.0.0.1:8080 or ws://127.0.0.1:8080/cable")
    cable, base = _SCHEMES[given.scheme]
    with_path = given if given.path not in ("", "/") else given.with_path(CABLE_PATH).with_query(given.query)
    return Addresses(str(with_path.with_scheme(cable)), str(given.origin().with_scheme(base)))


def _parsed(url: str) -> URL:
    try:
        return URL(url)
    except ValueError as error:
        raise UserMistake(f"{url!r} is not a URL: {error}") from error
