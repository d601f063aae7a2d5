"""The endpoints of a server, derived from one address: `http://host:port` or the full URL of the cable, and over TCP
`tcp://host:port` or `tls://host:port`."""

from msgspec import Struct
from yarl import URL

from ropewalk.model.errors import UserMistake

CABLE_PATH = "/cable"
TCP_SCHEMES = {"tcp": False, "tls": True}
"""The schemes for Broky, and whether they use TLS."""

_OTHERS = {"tcp": "tls", "tls": "tcp", "http": "https", "https": "http"}
_SCHEMES = {"http": ("ws", "http"), "https": ("wss", "https"), "ws": ("ws", "http"), "wss": ("wss", "https")}


class Addresses(Struct, frozen=True):
    """`cable`: the WebSocket endpoint. `base`: the prefix of the HTTP endpoints."""

    cable: str
    base: str


class TcpAddress(Struct, frozen=True):
    """An address for Broky. `url` is as the user wrote it."""

    url: str
    host: str
    port: int
    secure: bool

    @property
    def netloc(self) -> str:
        """Host and port as in a URL."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def hint(self) -> str:
        """What to try if the server does not understand the client: the same address with or without TLS."""
        other = _OTHERS[self.url.partition(":")[0].lower()]
        return f"if {'no TLS' if self.secure else 'TLS'} is spoken there, write {other}://{self.netloc}"


def is_tcp(url: str) -> bool:
    """Whether the scheme selects Broky."""
    return url.partition(":")[0] in TCP_SCHEMES


def tcp_address(url: str) -> TcpAddress:
    """Accepts every address of a server, because all protocols share its port. Raises UserMistake."""
    given = _parsed(url)
    secure = {**TCP_SCHEMES, "http": False, "https": True}.get(given.scheme)
    if secure is None or not given.host or not given.port:
        raise UserMistake(f"{url!r} is not a server's address; write it like tcp://127.0.0.1:8080")
    return TcpAddress(url, given.host, given.port, secure)


def require_http(url: str) -> None:
    """Raises UserMistake for an address with a scheme for Broky."""
    if is_tcp(url):
        raise UserMistake(f"this goes over HTTP: write http:// or https:// in the place of {url.partition(':')[0]}://")


def addresses(url: str) -> Addresses:
    """Raises UserMistake for an invalid address."""
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
