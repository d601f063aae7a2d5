"""Finds the client address of a connection through proxies: forwarding headers and the PROXY protocol.

A header is trusted only as far as each address that forwarded it is a trusted proxy: the client is the last one that is not.
"""

from collections.abc import Callable, Mapping, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from msgspec import Struct

from ropewalk.model.errors import BadRequest, UserMistake

UNIX = "unix"
"""Stands for proxies that connect over a Unix socket, whose connections have no address."""


FORWARDING_HEADERS = ("x-forwarded-for", "x-forwarded-proto")


def joined_headers(all_of: Callable[[str, list[str]], Sequence[str]], names: Sequence[str]) -> dict[str, str]:
    """The values of each header, joined by commas if a name is repeated (RFC 9110 section 5.3)."""
    return {name: ",".join(all_of(name, [])) for name in names}


class Peer(Struct, frozen=True):
    """The other end of a connection: the address of the socket ("" for a Unix socket), and the one in a PROXY header."""

    address: str
    proxied: str = ""


class TrustedProxies:
    """`proxies` are addresses, networks in CIDR notation, or `unix`. Raises UserMistake for anything else."""

    def __init__(self, proxies: Sequence[str] = ()) -> None:
        self._unix = UNIX in proxies
        self._networks = [_network(proxy) for proxy in proxies if proxy != UNIX]

    def __bool__(self) -> bool:
        return self._unix or bool(self._networks)

    def trusts(self, address: str) -> bool:
        """`address`: of the socket, "" for a Unix socket."""
        if not address:
            return self._unix
        parsed = _address(address)
        return parsed is not None and any(parsed in network for network in self._networks)

    def client(self, peer: Peer, scheme: str, headers: Mapping[str, str]) -> tuple[str, str]:
        """The client's address and the scheme it used. `headers` as from `joined_headers`."""
        if not self or not self.trusts(peer.address):
            return peer.address, scheme
        forwarded = headers.get("x-forwarded-proto", "").rpartition(",")[2].strip().lower()
        return self._address_behind(peer.proxied or peer.address, headers.get("x-forwarded-for", "")), _SCHEMES.get(
            forwarded, scheme
        )

    def _address_behind(self, client: str, header: str) -> str:
        for hop in reversed(header.split(",")):
            address = _without_port(hop.strip())
            # Entries added by an untrusted address, or before an invalid one, are ignored.
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
    # Dual-stack sockets report IPv4 addresses in IPv6 notation.
    return address.ipv4_mapped or address if isinstance(address, IPv6Address) else address


def _without_port(text: str) -> str:
    """Some proxies append a port: `1.2.3.4:5678`, `[::1]:5678`."""
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0] if text.count(":") == 1 else text


MAX_V1_BYTES = 107
V2_SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"
MAX_V2_BYTES = 2048
_V2_HEAD = 16
_LOCAL, _PROXY = 0x20, 0x21
_SIZES = {0x11: 4, 0x21: 16}  # TCP over IPv4, over IPv6


def split_proxy_header(data: bytes) -> tuple[str, bytes] | None:
    """Split a header of the PROXY protocol, version 1 or 2, from the input. Only the source address is used.

    Returns (source address, rest), with "" for the proxy's own connections; None while the header is incomplete. Raises
    BadRequest if there is no such header. See https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt.
    """
    if data[: len(V2_SIGNATURE)] == V2_SIGNATURE[: len(data)]:
        return _version_2(data)
    return _version_1(data)


def _version_1(data: bytes) -> tuple[str, bytes] | None:
    line, end, rest = data.partition(b"\r\n")
    if not b"PROXY "[: len(line)] == line[:6] or len(line) > MAX_V1_BYTES:
        raise BadRequest("no PROXY header")
    if not end:
        return None
    match line.decode("ascii", "replace").split(" "):
        case ["PROXY", "UNKNOWN", *_]:
            return "", rest
        case ["PROXY", "TCP4" | "TCP6", source, _, _, _]:
            try:
                return str(ip_address(source)), rest
            except ValueError:
                pass
    raise BadRequest("a PROXY header that cannot be read")


def _version_2(data: bytes) -> tuple[str, bytes] | None:
    if len(data) < _V2_HEAD:
        return None
    command, family = data[12], data[13]
    size = int.from_bytes(data[14:16])
    if command not in (_LOCAL, _PROXY) or size > MAX_V2_BYTES:
        raise BadRequest("a PROXY header that cannot be read")
    if len(data) < _V2_HEAD + size:
        return None
    rest = data[_V2_HEAD + size :]
    width = _SIZES.get(family, 0)
    if command == _LOCAL or not width or size < 2 * width + 4:
        return "", rest
    source = data[_V2_HEAD : _V2_HEAD + width]
    return str(IPv4Address(source) if width == 4 else IPv6Address(source)), rest
