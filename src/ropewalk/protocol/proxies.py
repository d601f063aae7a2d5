"""Where a connection really comes from, when proxies stand before the server.

A header is believed only as far as each address that passed it on is a trusted proxy: the client is the last one that is not.
"""

from collections.abc import Callable, Mapping, Sequence
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from msgspec import Struct

from ropewalk.model.errors import UserMistake

UNIX = "unix"
"""The word for proxies that connect over a Unix socket, whose connections have no address."""


FORWARDING_HEADERS = ("x-forwarded-for", "x-forwarded-proto")


def joined_headers(all_of: Callable[[str, list[str]], Sequence[str]], names: Sequence[str]) -> dict[str, str]:
    """Headers of a request in which one name may come several times, joined by commas as RFC 9110 has it (section 5.3)."""
    return {name: ",".join(all_of(name, [])) for name in names}


class Peer(Struct, frozen=True):
    """The other end of a connection: the socket's address ("" for a Unix socket), and the one that a PROXY header told."""

    address: str
    told: str = ""


class TrustedProxies:
    """`proxies` are addresses, networks in CIDR notation, or `unix`. Raises UserMistake for anything else."""

    def __init__(self, proxies: Sequence[str] = ()) -> None:
        self._unix = UNIX in proxies
        self._networks = [_network(proxy) for proxy in proxies if proxy != UNIX]

    def __bool__(self) -> bool:
        return self._unix or bool(self._networks)

    def trusts(self, address: str) -> bool:
        """`address` as the socket gives it, "" for a Unix socket."""
        if not address:
            return self._unix
        parsed = _address(address)
        return parsed is not None and any(parsed in network for network in self._networks)

    def client(self, peer: Peer, scheme: str, headers: Mapping[str, str]) -> tuple[str, str]:
        """The client's address and the scheme it used. `headers` as from `joined_headers`."""
        if not self or not self.trusts(peer.address):
            return peer.address, scheme
        forwarded = headers.get("x-forwarded-proto", "").rpartition(",")[2].strip().lower()
        return self._address_behind(peer.told or peer.address, headers.get("x-forwarded-for", "")), _SCHEMES.get(
            forwarded, scheme
        )

    def _address_behind(self, client: str, header: str) -> str:
        for hop in reversed(header.split(",")):
            address = _without_port(hop.strip())
            # What an untrusted address says of those behind it is not believed; nor can anything behind nonsense be.
            if not self.trusts(client) or _address(address) is None:
                break
            client = address
        return client


_SCHEMES = {"http": "http", "https": "https", "ws": "http", "wss": "https"}


def _network(text: str) -> IPv4Network | IPv6Network:
    try:
        return ip_network(text)
    except ValueError:
        raise UserMistake(f"--trusted_proxies wants addresses, networks such as 10.0.0.0/8, or {UNIX}; not {text!r}") from None


def _address(text: str) -> object:
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    # A socket that listens on both families gives IPv4 addresses in IPv6 notation.
    return address.ipv4_mapped or address if isinstance(address, IPv6Address) else address


def _without_port(text: str) -> str:
    """`1.2.3.4:5678` and `[::1]:5678`, as some proxies write them."""
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0] if text.count(":") == 1 else text
