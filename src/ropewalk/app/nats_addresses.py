"""Addresses of the embedded nats-server, with their credentials.

Invariant: an error never shows an address, because it may hold a password.
"""

import socket
from collections.abc import Iterable
from dataclasses import dataclass, replace
from ipaddress import ip_address
from secrets import token_urlsafe
from urllib.parse import unquote, urlsplit

from ropewalk.model.errors import UserMistake

TOKEN_BYTES = 32


@dataclass(frozen=True)
class NatsListener:
    """`credentials` as they are written in a URL: `user:password`, a token, or "" for none."""

    host: str
    port: int
    credentials: str = ""

    @property
    def place(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        return f"nats://{self.credentials}{'@' if self.credentials else ''}{self.place}"

    @property
    def is_token(self) -> bool:
        return bool(self.credentials) and ":" not in self.credentials

    @property
    def near(self) -> "NatsListener":
        """Where clients of this machine reach it."""
        return replace(self, host={"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host))

    def authorization(self) -> dict[str, dict[str, str]]:
        """The section of the server's configuration; empty without credentials."""
        if not self.credentials:
            return {}
        user, _, password = map(unquote, self.credentials.partition(":"))
        return {"authorization": {"token": user} if self.is_token else {"user": user, "password": password}}


def parse(flag: str, text: str, port: int) -> NatsListener:
    """`port`: the default. Raises UserMistake."""
    try:
        url = urlsplit(text if "://" in text else f"nats://{text}")
        number = url.port
    except ValueError:
        raise UserMistake(f"--{flag} wants an address such as nats://127.0.0.1:{port}") from None
    if not url.hostname:
        raise UserMistake(f"--{flag} wants an address such as nats://127.0.0.1:{port}")
    credentials, at, _ = url.netloc.rpartition("@")
    if at and not (url.username and url.password != ""):
        raise UserMistake(f"--{flag} wants user:password@ or a token and @ before the host, neither of them empty")
    return NatsListener(url.hostname, port if number is None else number, credentials)


def is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def require_guarded(address: str, cluster: str, routes: Iterable[str], secret: bool) -> None:
    """Raises UserMistake for an embedded server that would let in anyone. `secret`: the server has one, from which credentials
    between nats-servers are derived."""
    clients = parse("enats_addr", address, 4222)
    if not clients.credentials and not is_loopback(clients.host):
        raise UserMistake(
            f"--enats_addr without credentials would let in everyone who reaches {clients.host}: put user:password@ or a token "
            "and @ before the host, or listen on 127.0.0.1"
        )
    if not cluster:
        return
    peers = parse("enats_cluster", cluster, 6222)
    for route in routes:
        parse("enats_cluster_routes", route, 6222)
    if peers.is_token:
        raise UserMistake("--enats_cluster wants user:password@ before the host: between nats-servers NATS takes no token")
    if not peers.credentials and not secret:
        raise UserMistake(
            f"--enats_cluster without credentials would let in everyone who reaches {peers.host}: set --secret, the same at "
            "all nodes, or put the same user:password@ before the hosts of --enats_cluster and --enats_cluster_routes"
        )


def private(listener: NatsListener) -> NatsListener:
    """With a port that was free where 0 was set, and a random token where no credentials were: both stay for as long as the
    server runs, also when its nats-server starts again."""
    return replace(
        listener,
        port=listener.port or _free_port(listener.host),
        credentials=listener.credentials or token_urlsafe(TOKEN_BYTES),
    )


_reserved: list[socket.socket] = []
"""Bound as long as this process runs, so that the system gives their ports to nobody else. A server that binds such a port by
its number gets it, because these sockets do not listen."""


def _free_port(host: str) -> int:
    probe = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    _reserved.append(probe)
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    probe.bind((host, 0))
    port: int = probe.getsockname()[1]
    return port
