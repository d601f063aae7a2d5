"""`connect`: the scheme of the address selects WebSocket or TCP."""

import random
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from ropewalk.client.addresses import addresses, is_tcp, tcp_address
from ropewalk.client.broky import BrokyCodec
from ropewalk.client.client import Client
from ropewalk.client.codec import CableCodec
from ropewalk.client.connection import Refresh, SessionOptions
from ropewalk.client.publisher import Publisher
from ropewalk.client.pusher import Pusher
from ropewalk.client.session import Session
from ropewalk.client.tcp import TcpDialer
from ropewalk.client.tls import http_session, tls_context
from ropewalk.client.websocket import WebSocketDialer
from ropewalk.core.backoff import Backoff, Chance

PING = 3
"""Seconds between two pings. A server that is silent for twice that is lost."""


@asynccontextmanager
async def connect(
    url: str,
    token: str | None = None,
    *,
    key: str | None = None,
    refresh_token: Refresh | None = None,
    token_param: str = "jid",
    ca_file: str | None = None,
    ping_interval: int | None = PING,
    inbox_size: int = 256,
    connect_timeout: float = 10.0,
    answer_timeout: float = 10.0,
    backoff: Backoff | None = None,
    chance: Chance = random.random,
) -> AsyncIterator[Client]:
    """A client of the server at `url`, closed at the end of the block.

    Args:
        url: `http://host:port` or the full `ws://…/cable` for WebSocket, `tcp://host:port` or `tls://host:port` for TCP.
        token: The JWT to connect with.
        key: The key for publishing.
        refresh_token: Called for a new token when it has expired.
        token_param: The server's `--jwt_param`.
        ca_file: A file with the certificates to trust instead of the system's.
        ping_interval: Requested from the server; None: the server decides. Over TCP the client pings, with None it does not.
        inbox_size: Events that wait for a slow reader before the socket is no longer read.

    Raises Unreachable, Unauthorized or TokenExpired if the first connection fails. Later ones are retried until the block ends.
    """
    tls = tls_context(ca_file)
    options = SessionOptions(
        backoff or Backoff(), chance, _steady_clock(), inbox_size, connect_timeout, answer_timeout, ping_interval
    )
    async with AsyncExitStack() as stack:
        if is_tcp(url):
            address = tcp_address(url)
            context = (tls or ssl.create_default_context()) if address.secure else None
            session = Session(TcpDialer(address, context, connect_timeout), BrokyCodec(), options, token or "", refresh_token)
            pusher = Pusher(url, key, ca_file=ca_file, backoff=options.backoff, chance=chance, timeout=connect_timeout)
            client = Client(session, None, (await stack.enter_async_context(pusher)).session if key else None)
        else:
            cable = addresses(url).cable
            http = await stack.enter_async_context(http_session(tls))
            dialer = WebSocketDialer(http, cable, token_param, ping_interval, connect_timeout)
            session = Session(dialer, CableCodec(), options, token or "", refresh_token)
            publisher = Publisher(url, key, http=http, backoff=options.backoff, chance=chance)
            client = Client(session, await stack.enter_async_context(publisher))
        await session.open()
        stack.push_async_callback(session.close)
        yield client


def _steady_clock() -> Callable[[], float]:
    """UNIX time that does not jump when the system clock is set: the state compares times of one session."""
    start = time.time() - time.monotonic()
    return lambda: start + time.monotonic()
