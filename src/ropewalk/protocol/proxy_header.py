"""The PROXY protocol, versions 1 and 2: a proxy's first bytes, which tell whose connection it passes on.

See https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt. Only the source address is taken from it.
"""

from ipaddress import IPv4Address, IPv6Address, ip_address

from ropewalk.model.errors import BadRequest

V1_LONGEST = 107
V2_SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"
V2_LONGEST = 2048
_V2_HEAD = 16
_LOCAL, _PROXY = 0x20, 0x21
_SIZES = {0x11: 4, 0x21: 16}  # TCP over IPv4, over IPv6


def split_proxy_header(data: bytes) -> tuple[str, bytes] | None:
    """(source address, what follows); "" where the proxy speaks for itself, None while the header is incomplete.

    Raises BadRequest for what is no such header.
    """
    if data[: len(V2_SIGNATURE)] == V2_SIGNATURE[: len(data)]:
        return _version_2(data)
    return _version_1(data)


def _version_1(data: bytes) -> tuple[str, bytes] | None:
    line, end, rest = data.partition(b"\r\n")
    if not b"PROXY "[: len(line)] == line[:6] or len(line) > V1_LONGEST:
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
    if command not in (_LOCAL, _PROXY) or size > V2_LONGEST:
        raise BadRequest("a PROXY header that cannot be read")
    if len(data) < _V2_HEAD + size:
        return None
    rest = data[_V2_HEAD + size :]
    width = _SIZES.get(family, 0)
    if command == _LOCAL or not width or size < 2 * width + 4:
        return "", rest
    source = data[_V2_HEAD : _V2_HEAD + width]
    return str(IPv4Address(source) if width == 4 else IPv6Address(source)), rest
