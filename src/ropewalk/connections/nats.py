"""Connections to NATS. They come back by themselves for ever, notice a dead server within seconds, and keep nothing to be sent
later: a publication that went out long after its publisher gave up would be registered unasked."""

import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

import nats
from nats.aio.client import Client

CONNECT_SECONDS = 2
RECONNECT_SECONDS = 0.25
PING_SECONDS = 1
MOST_UNANSWERED_PINGS = 2


@dataclass(frozen=True)
class NatsAddress:
    """Where NATS is."""

    servers: tuple[str, ...]
    in_order: bool = False
    tls_ca: str = ""


async def _ignore() -> None:
    pass


async def _ignore_error(error: Exception) -> None:
    """Errors of one operation are raised by it; those of the connection show as disconnected."""


async def open_nats(
    address: NatsAddress,
    name: str,
    reconnected: Callable[[], Awaitable[None]] = _ignore,
    disconnected: Callable[[], Awaitable[None]] = _ignore,
    failed: Callable[[Exception], Awaitable[None]] = _ignore_error,
) -> Client:
    """A connection that is there. Raises what the client raises where no server answers: it is retried only later on."""
    servers, login = _split_login(address.servers)
    secure = bool(address.tls_ca) or any(server.startswith("tls://") for server in address.servers)
    tls = ssl.create_default_context(cafile=address.tls_ca or None) if secure else None
    return await nats.connect(
        servers=servers,
        name=name,
        reconnected_cb=reconnected,
        disconnected_cb=disconnected,
        error_cb=failed,
        connect_timeout=CONNECT_SECONDS,
        reconnect_time_wait=RECONNECT_SECONDS,
        max_reconnect_attempts=-1,
        ping_interval=PING_SECONDS,
        max_outstanding_pings=MOST_UNANSWERED_PINGS,
        dont_randomize=address.in_order,
        pending_size=0,
        tls=tls,
        **login,
    )


def _split_login(servers: tuple[str, ...]) -> tuple[list[str], dict[str, str]]:
    """The servers without credentials, and those of the first that has some: the client would take them as they are written,
    with their percent signs. A name alone is a token."""
    urls = [urlsplit(server if "://" in server else f"nats://{server}") for server in servers]
    plain = [f"{url.scheme}://{url.netloc.rpartition('@')[2]}" for url in urls]
    for url in urls:
        if url.username:
            name = unquote(url.username)
            return plain, {"token": name} if url.password is None else {"user": name, "password": unquote(url.password)}
    return plain, {}
