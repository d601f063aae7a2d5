"""The endpoints of a server, from the one address that a user gives: `http://host:port`, or the full URL of the cable."""

from msgspec import Struct
from yarl import URL

from ropewalk.model.errors import UserMistake

CABLE_PATH = "/cable"
_SCHEMES = {"http": ("ws", "http"), "https": ("wss", "https"), "ws": ("ws", "http"), "wss": ("wss", "https")}


class Addresses(Struct, frozen=True):
    """`cable` is the WebSocket endpoint, `base` what the paths of the HTTP endpoints are appended to."""

    cable: str
    base: str


def addresses(url: str) -> Addresses:
    """Raises UserMistake for what is no address of a server."""
    try:
        given = URL(url)
    except ValueError as error:
        raise UserMistake(f"{url!r} is not a URL: {error}") from error
    if given.scheme not in _SCHEMES or not given.host:
        raise UserMistake(f"{url!r} is not a server's URL; write it like http://127.0.0.1:8080 or ws://127.0.0.1:8080/cable")
    cable, base = _SCHEMES[given.scheme]
    with_path = given if given.path not in ("", "/") else given.with_path(CABLE_PATH).with_query(given.query)
    return Addresses(str(with_path.with_scheme(cable)), str(given.origin().with_scheme(base)))
