"""Broky over TCP: the open connections."""

import asyncio
import socket
from typing import cast

from ropewalk.adapters.endpoints.broky_connection import BrokyConnection
from ropewalk.adapters.endpoints.broky_pushes import Pushes
from ropewalk.adapters.endpoints.broky_shared import BrokyClients, BrokyOptions, BrokyShared
from ropewalk.adapters.endpoints.head_timeouts import MESSAGE_SECONDS, HeadTimeouts, UnfinishedFrames
from ropewalk.adapters.endpoints.turns import LoopTurns
from ropewalk.adapters.endpoints.websocket import Open
from ropewalk.core.stats import Stats
from ropewalk.protocol.proxies import Peer

HELLO_SECONDS = 5.0
MAX_UNFINISHED_BYTES = 256 << 20
"""Of incomplete frames of all connections, as of incomplete HTTP bodies."""


class BrokyEndpoint:
    """Implements `ConnectionTable`."""

    def __init__(
        self,
        open_session: Open,
        pushes: Pushes,
        clients: BrokyClients,
        stats: Stats,
        options: BrokyOptions,
        turns: LoopTurns,
    ) -> None:
        timeouts, write_timeouts = HeadTimeouts(HELLO_SECONDS), HeadTimeouts(options.write_timeout)
        messages = UnfinishedFrames(MESSAGE_SECONDS, MAX_UNFINISHED_BYTES)
        self._shared = BrokyShared(open_session, clients, pushes, stats, options, timeouts, write_timeouts, turns, messages)
        self._connections: set[BrokyConnection] = set()

    @property
    def connections(self) -> int:
        return len(self._connections)

    def take_over(self, transport: asyncio.Transport, data: bytes, peer: Peer, accepted: socket.socket | None = None) -> None:
        """Take over a connection with the input read so far. `accepted`: its socket, without TLS."""
        sock = cast(socket.socket, transport.get_extra_info("socket"))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # detects lost peers to which nothing is sent
        connection = BrokyConnection(self, self._shared, transport, peer, accepted)
        transport.set_protocol(connection)
        self._shared.timeouts.begin(connection)
        self._connections.add(connection)
        connection.data_received(data)

    def left(self, connection: BrokyConnection) -> None:
        self._shared.timeouts.end(connection)
        self._shared.write_timeouts.end(connection)
        self._connections.discard(connection)

    def drain(self) -> None:
        for connection in list(self._connections):
            connection.drain()
