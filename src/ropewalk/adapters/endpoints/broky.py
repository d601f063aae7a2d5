"""Broky over TCP: the connections that there are, and how many of them may be clients."""

import asyncio
import socket
from collections.abc import Callable
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
    """Implements `ConnectionTable`. On a ring node a connection counts as a client from its Hello on, if `may_stay` permits it:
    clients must not take the places of nodes."""

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
        self._undecided: dict[BrokyConnection, None] = {}  # oldest first
        self.may_stay: Callable[[], bool] = lambda: True

    @property
    def connections(self) -> int:
        return len(self._connections)

    @property
    def undecided(self) -> int:
        """Connections to a node of a ring that are neither counted as clients nor proven as nodes, and refused ones until they
        are closed."""
        return len(self._undecided)

    @property
    def in_a_ring(self) -> bool:
        return self._shared.clients.nodes is not None

    def take_over(self, transport: asyncio.Transport, data: bytes, peer: Peer, accepted: socket.socket | None = None) -> None:
        """Take over a connection with the input read so far. `accepted`: its socket, without TLS."""
        sock = cast(socket.socket, transport.get_extra_info("socket"))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # detects lost peers to which nothing is sent
        connection = BrokyConnection(self, self._shared, transport, peer, accepted)
        transport.set_protocol(connection)
        self._shared.timeouts.begin(connection)
        if not self.in_a_ring:
            self._connections.add(connection)
        else:
            self._undecided[connection] = None
        connection.data_received(data)

    def left(self, connection: BrokyConnection) -> None:
        self._shared.timeouts.end(connection)
        self._shared.write_timeouts.end(connection)
        self._connections.discard(connection)
        self._undecided.pop(connection, None)

    def drop_oldest_undecided(self) -> None:
        oldest = next(iter(self._undecided))
        del self._undecided[oldest]
        oldest.drop()

    def counted(self, connection: BrokyConnection) -> bool:
        if connection in self._connections:
            return True
        if not self.may_stay():
            return False
        del self._undecided[connection]
        self._connections.add(connection)
        return True

    def drain(self) -> None:
        for connection in [*self._connections, *self._undecided]:
            connection.drain()
