"""Listening sockets: bound here, or inherited from systemd. Inherited ones outlive the process.

They listen at once: connections that arrive before the server accepts wait in the kernel's queue.
"""

import contextlib
import errno
import os
import socket
import stat
import struct
import sys
import time
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from ropewalk.model.errors import UserMistake

BACKLOG = 4096  # clients that reconnect all at once wait here instead of retrying
FIRST_INHERITED = 3
UNIX_PREFIX = "unix:"
CLAIM_ATTEMPTS, CLAIM_RETRY_SECONDS = 3, 0.02

_CREDENTIALS = struct.Struct("3i")  # pid, uid and gid: unix(7)


@dataclass(frozen=True)
class Listening:
    """A listening socket.

    Attributes:
        inherited: another process has the socket open too.
        path: of a Unix socket created by this process.
        inode: of that Unix socket.
        claim: keeps other servers of this user from reserving the same port.
    """

    sock: socket.socket
    inherited: bool = False
    path: str = ""
    inode: int = 0
    claim: socket.socket | None = None

    @cached_property
    def family(self) -> int:
        return self.sock.family

    @property
    def listens(self) -> bool:
        """False for a socket that only reserves the port."""
        return bool(self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))

    def address(self, scheme: str) -> str:
        if self.sock.family == socket.AF_UNIX:
            return f"{UNIX_PREFIX}{self.path or self.sock.getsockname()}"
        host, port = self.sock.getsockname()[:2]
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"

    def drain_claim(self) -> None:
        """Call it whenever the claim is readable: with a full queue it would look like a claim of another user."""
        with contextlib.suppress(OSError):
            while self.claim is not None:
                self.claim.accept()[0].close()

    def close(self) -> None:
        self.sock.close()
        if self.claim is not None:
            self.claim.close()
        with contextlib.suppress(OSError):
            # Not the file of a process that has taken over.
            if self.path and os.stat(self.path).st_ino == self.inode:
                os.unlink(self.path)


def inherited_sockets(environ: MutableMapping[str, str]) -> list[Listening]:
    """The sockets passed by systemd or a compatible program. Removes the variables: they are for this process only."""
    meant_for = environ.pop("LISTEN_PID", "")
    count = environ.pop("LISTEN_FDS", "")
    environ.pop("LISTEN_FDNAMES", None)
    if meant_for != str(os.getpid()) or not (count.isascii() and count.isdigit()):
        return []
    return [_inherited(number) for number in range(FIRST_INHERITED, FIRST_INHERITED + int(count))]


def passed_on(descriptors: Sequence[int]) -> list[Listening]:
    """Listening sockets that the parent process passed on by these descriptors."""
    return [_inherited(number) for number in descriptors]


def _inherited(number: int) -> Listening:
    try:
        sock = socket.socket(fileno=number)
    except OSError as error:
        raise UserMistake(f"file descriptor {number}, passed by LISTEN_FDS, is not a socket: {error.strerror}") from None
    families = (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX)
    if sock.family not in families or not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        raise UserMistake(f"file descriptor {number}, passed on by LISTEN_FDS, does not listen (ListenStream= and Accept=no)")
    os.set_inheritable(number, False)
    sock.setblocking(False)
    return Listening(sock, inherited=True)


def bound_sockets(host: str, port: int, reuse_port: bool, flag: str = "port") -> list[Listening]:
    """Raises UserMistake where nothing can listen. `reuse_port`: beside another process that listens there already. `flag`: the
    setting of this port."""
    try:
        if host.startswith(UNIX_PREFIX):
            return [_unix(host.removeprefix(UNIX_PREFIX), reuse_port)]
        return _tcp(host, port, reuse_port)
    except OSError as error:
        raise UserMistake(_why_not(host, port, error, flag)) from None


def _why_not(host: str, port: int, error: OSError, flag: str) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"cannot listen on {host}:{port}: another program does. Stop it, or choose another port with --{flag}"
    if error.errno == errno.EACCES:
        return f"cannot listen on {host}:{port}: ports below 1024 need a privilege. Choose another port with --{flag}"
    return f"cannot listen on {host}:{port}: {error.strerror or error}"


def reserved_sockets(host: str, port: int, flag: str = "port") -> list[Listening]:
    """Sockets that reserve the port but do not listen: workers listen on it, each with its own socket. Raises UserMistake, also
    if another process listens on the port or has reserved it."""
    try:
        if port:
            # Binding with a shared port succeeds even if another server shares it already.
            for probe in _tcp(host, port, reuse_port=False, listen=False):
                probe.close()
        reserved = _tcp(host, port, reuse_port=True, listen=False)
    except OSError as error:
        raise UserMistake(_why_not(host, port, error, flag)) from None
    if sys.platform != "linux":
        return reserved
    try:
        return [replace(each, claim=_claim(each.sock)) for each in reserved]
    except FileExistsError:
        for each in reserved:
            each.close()
        raise UserMistake(f"cannot listen on {host}:{port}: another server with workers does") from None


def _claim(reserved: socket.socket) -> socket.socket | None:
    """A name that one server at a time can have: sockets that share their port do not exclude each other. It is in the abstract
    namespace, which belongs to the network namespace, as ports do, and ends with the process.

    Any user can bind that name. The name counts only while a process of our own user listens at it: Linux lets no other user
    share a port with us. Returns None if a process of another user has the name. Raises FileExistsError."""
    address, port = reserved.getsockname()[:2]
    name = f"\0ropewalk {address} {port}"
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        claim.bind(name)
        claim.listen()
        claim.setblocking(False)
    except OSError:
        claim.close()
        if _listening_user(name) == os.geteuid():
            raise FileExistsError(name) from None
        return None
    return claim


def _listening_user(name: str) -> int | None:
    """The user whose process listens at a Unix socket; None if no process does. Another server may be between its bind and its
    listen, so a refused connection is tried again."""
    for _ in range(CLAIM_ATTEMPTS):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.setblocking(False)
            try:
                probe.connect(name)
            except ConnectionRefusedError:
                time.sleep(CLAIM_RETRY_SECONDS)
                continue
            except OSError:
                return None
            credentials = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            return int(_CREDENTIALS.unpack(credentials)[1])
    return None


def _tcp(host: str, port: int, reuse_port: bool, listen: bool = True) -> list[Listening]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[Listening] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            # With port 0 the first socket's port is the port of all.
            known = sockets[0].sock.getsockname()[1] if sockets else port
            sock = _bound(family, kind, protocol, (address[0], known, *address[2:]), reuse_port)
            sockets.append(Listening(sock))
            if listen:
                sock.listen(BACKLOG)
    except OSError:
        for listening in sockets:
            listening.close()
        raise
    return sockets


def _bound(family: int, kind: int, protocol: int, address: tuple[object, ...], reuse_port: bool) -> socket.socket:
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            # `::` means every address of both families; any other is of one family anyway.
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if address[0] == "::" else 1)
        sock.bind(address)
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock


def _unix(path: str, take_over: bool) -> Listening:
    """Made under another name and renamed: a process that takes over has no moment without a socket at `path`."""
    if not take_over:
        _require_free(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    own = f"{path}.{os.getpid()}"
    try:
        sock.bind(own)
        sock.listen(BACKLOG)
        os.rename(own, path)
    except OSError:
        sock.close()
        Path(own).unlink(missing_ok=True)
        raise
    sock.setblocking(False)
    return Listening(sock, path=path, inode=os.stat(path).st_ino)


def _require_free(path: str) -> None:
    """Raises UserMistake for a socket with a listener and for any other file. The socket file of an ended server is free."""
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            raise UserMistake(f"cannot listen on {UNIX_PREFIX}{path}: the file exists and is not a socket")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except OSError:
            return
    raise UserMistake(f"cannot listen on {UNIX_PREFIX}{path}: another process does")


def listening_urls(sockets: Sequence[Listening], tls: bool, host: str, tcp_port: int) -> list[str]:
    """The URLs on which a server listens: of `sockets` first, then of --tcp_port on `host`, if it is not 0."""
    http, tcp = ("https", "tls") if tls else ("http", "tcp")
    listening = [each.address(http) for each in sockets]
    if tcp_port:
        listening.append(f"{tcp}://{f'[{host}]' if ':' in host else host}:{tcp_port}")
    return listening
