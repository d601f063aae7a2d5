"""Connections to NATS. They reconnect without a limit, detect a dead server within seconds, and buffer nothing while
disconnected: a publication must not be registered long after its publisher has given up."""

import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

from nats import errors
from nats.aio.client import Client

CONNECT_SECONDS = 2
RECONNECT_SECONDS = 0.25
PING_SECONDS = 1
FLUSH_SECONDS = 10
MAX_UNANSWERED_PINGS = 2


@dataclass(frozen=True)
class NatsAddress:
    """Servers of NATS.

    Args:
        in_order: try the servers in the given order, not in a random one.
    """

    servers: tuple[str, ...]
    in_order: bool = False
    tls_ca: str = ""


class LastingClient(Client):
    """The client of NATS, which otherwise sends messages that are too large, stops reconnecting after some errors, and returns
    from `flush` too early.

    Args:
        secure: require TLS.
    """

    def __init__(self, secure: bool = False) -> None:
        super().__init__()
        self._secure = secure

    async def publish(self, subject: str, payload: bytes = b"", reply: str = "", headers: dict[str, str] | None = None) -> None:
        """Raises MaxPayloadError if headers and payload are too large: the server counts both, and closes the connection."""
        if headers is not None and len(payload) + header_bytes(headers) > self.max_payload:
            raise errors.MaxPayloadError
        await super().publish(subject, payload, reply, headers)

    async def flush(self, timeout: int = FLUSH_SECONDS) -> None:
        """Returns when the server has processed all earlier commands. Raises TimeoutError.

        The client of NATS writes its ping at once, ahead of commands that wait to be written. The answer to the first ping only
        proves that they are written now.
        """
        await super().flush(timeout)
        await super().flush(timeout)

    async def _process_err(self, err_msg: str) -> None:
        """Handles an error of the server that closes the connection. The client of NATS would not reconnect."""
        if "permissions violation" in err_msg:  # about one subject: the connection stays
            await super()._process_err(err_msg)
            return
        error = errors.Error(f"nats: {err_msg.strip(chr(39))}")
        await self._process_op_err(error)
        await self._error_cb(error)

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        """Called before the credentials are sent, and when the settings of the server change."""
        if initial_connection and self._secure:
            if info.get("tls_available"):
                info["tls_required"] = True  # the server leaves the choice to its clients
            if not info.get("tls_required"):
                raise errors.Error("nats: TLS is required, but the server does not offer it")
        self._max_payload = info.get("max_payload", self._max_payload)
        await super()._process_info(info, initial_connection)

    async def _process_connect_init(self) -> None:
        try:
            await super()._process_connect_init()
        except BaseException as error:
            if self._transport is not None:
                # The next attempt opens another socket, and the client would leak this one.
                self._transport.close()  # type: ignore[no-untyped-call]
            if isinstance(error, OSError | errors.Error | TimeoutError) or not isinstance(error, Exception):
                raise
            # Not a NATS server. The client must keep trying.
            raise errors.Error(f"nats: the response of the server cannot be read: {error}") from error


def header_bytes(headers: dict[str, str]) -> int:
    """The size as a server counts it: the version line, a line for each header, an empty line."""
    return len("NATS/1.0\r\n\r\n") + sum(len(name) + len(value.encode()) + len(": \r\n") for name, value in headers.items())


async def _ignore() -> None:
    pass


async def _ignore_error(error: Exception) -> None:
    """Errors of an operation are raised by it; those of the connection are reported as a disconnect."""


async def open_nats(
    address: NatsAddress,
    name: str,
    reconnected: Callable[[], Awaitable[None]] = _ignore,
    disconnected: Callable[[], Awaitable[None]] = _ignore,
    failed: Callable[[Exception], Awaitable[None]] = _ignore_error,
) -> Client:
    """Returns a connected client. Raises the client's error if no server responds: only lost connections are retried."""
    servers, login = _split_login(address.servers)
    secure = bool(address.tls_ca) or any(server.startswith("tls://") for server in address.servers)
    tls = ssl.create_default_context(cafile=address.tls_ca or None) if secure else None
    client = LastingClient(secure)
    options: dict[str, Any] = {
        "servers": servers,
        "name": name,
        "reconnected_cb": reconnected,
        "disconnected_cb": disconnected,
        "error_cb": failed,
        "connect_timeout": CONNECT_SECONDS,
        "reconnect_time_wait": RECONNECT_SECONDS,
        "max_reconnect_attempts": -1,
        "ping_interval": PING_SECONDS,
        "max_outstanding_pings": MAX_UNANSWERED_PINGS,
        "dont_randomize": address.in_order,
        "pending_size": 0,
        "tls": tls,
        **login,
    }
    await client.connect(**options)
    return client


def _split_login(servers: tuple[str, ...]) -> tuple[list[str], dict[str, str]]:
    """The servers without credentials, and the credentials of the first server that has some. A name alone is a token.

    The client does not decode percent signs in them.
    """
    urls = [urlsplit(server if "://" in server else f"nats://{server}") for server in servers]
    plain = [f"{url.scheme}://{url.netloc.rpartition('@')[2]}" for url in urls]
    for url in urls:
        if url.username:
            name = unquote(url.username)
            return plain, {"token": name} if url.password is None else {"user": name, "password": unquote(url.password)}
    return plain, {}
