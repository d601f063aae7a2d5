"""What a server sends to one client that connects and subscribes with history, byte by byte: for a floor that repeats it."""

import socket

from benchmarks.load import wire

Address = tuple[str, int]


def record(address: Address, path: str, stream: str, epoch: str, offset: int) -> tuple[bytes, bytes]:
    """What follows the upgrade, and what answers the subscribe."""
    with socket.create_connection(address, timeout=30) as sock:
        sock.sendall(wire.upgrade_request("bench", path))
        _, _, welcome = _until(sock, b'"welcome"').partition(b"\r\n\r\n")
        sock.sendall(wire.subscribe(stream, (epoch, offset)))
        return welcome, _until(sock, b'"confirm_history"')


def _until(sock: socket.socket, kind: bytes) -> bytes:
    """All bytes up to and including a message of this kind, the last one before the client's next command."""
    heard = b""
    while kind not in heard or not heard.endswith(b"}"):
        piece = sock.recv(65536)
        if not piece:
            raise ConnectionError(f"the server ended a connection before it said {kind.decode()}")
        heard += piece
    return heard
