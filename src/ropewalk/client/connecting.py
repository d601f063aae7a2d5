"""`connect`: the address says over what a client talks to its server."""

import random
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from ropewalk.client.addresses import addresses, is_tcp, tcp_address
from ropewalk.client.attempts import ATTEMPTS
from ropewalk.client.broky_client import BrokyClient
from ropewalk.client.broky_options import BrokyOptions
from ropewalk.client.broky_session import BrokySession
from ropewalk.client.cable_client import CableClient
from ropewalk.client.client import Client
from ropewalk.client.link import DialOptions
from ropewalk.client.publisher import Publisher
from ropewalk.client.pusher import Pusher
from ropewalk.client.session import CableSession, Refresh, SessionOptions
from ropewalk.client.trust import session_trusting, trust
from ropewalk.core.backoff import Backoff, Chance

PING = 3
"""Seconds between two pings; a lost server is noticed after twice that."""


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
    """A client of the server at `url`, closed at the end of the block. `http://host:port` or the full `ws://…/cable` connects
    over WebSocket, `tcp://host:port` or `tls://host:port` over TCP.

    `token` is the JWT to connect with; `refresh_token` is called for a new one when it has expired. `key` is the key for
    publishing. `ca_file` names the certificates to trust instead of the system's. `ping_interval` is what the server is asked
    for, None leaves it to the server; over TCP it is we who ping, and None does not. `inbox_size` is how many events may wait
    for a slow reader before the socket is no longer read. Raises Unreachable, Unauthorized or TokenExpired if the first
    connection fails; later ones are tried again until the block ends.
    """
    delays = backoff or Backoff()
    tls = trust(ca_file)
    if is_tcp(url):
        address = tcp_address(url)
        tcp_options = BrokyOptions(inbox_size, connect_timeout, answer_timeout, ping_interval, ATTEMPTS, delays, chance)
        tcp = BrokySession(
            address, token or "", (tls or ssl.create_default_context()) if address.secure else None, tcp_options, refresh_token
        )
        async with Pusher(url, key, ca_file=ca_file, backoff=delays, chance=chance, timeout=connect_timeout) as pusher:
            await tcp.open()
            try:
                yield BrokyClient(tcp, pusher if key else None)
            finally:
                await tcp.close()
        return
    dialing = DialOptions(
        addresses(url).cable, token=token or "", token_param=token_param, ping_interval=ping_interval, timeout=connect_timeout
    )
    options = SessionOptions(inbox_size, answer_timeout, delays, chance, _steady_clock())
    async with session_trusting(tls) as http:
        session = CableSession(http, dialing, options, refresh_token)
        await session.open()
        try:
            async with Publisher(url, key, http=http, backoff=delays, chance=chance) as publisher:
                yield CableClient(session, publisher)
        finally:
            await session.close()


def _steady_clock() -> Callable[[], float]:
    """UNIX time that does not jump when the machine's clock is set: the state compares moments of one session."""
    start = time.time() - time.monotonic()
    return lambda: start + time.monotonic()
