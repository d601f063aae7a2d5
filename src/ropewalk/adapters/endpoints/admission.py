"""Limits the number of connections by kind. Each kind has its own limit, so that none can lock out another.

Clients (WebSocket, SSE and TCP) are limited by `--max_conn`, other HTTP connections (publishers, API, health, metrics) by
`--max_http_conn`. Connections whose protocol is not known yet count for neither: above a bound the oldest of them is
dropped. All connections together stay below the limit of open files, and clients leave a reserve to the others.

The workers of a node share the two limits: each deducts the connections of the others, as of about a second ago. Connections
accepted within that second may exceed a limit.
"""

import logging
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ropewalk.adapters.endpoints.http_requests import HttpRequest
from ropewalk.adapters.endpoints.http_responses import refusal
from ropewalk.adapters.endpoints.routes import HttpAnswer, HttpHandler
from ropewalk.model.refusals import Refusal

logger = logging.getLogger("ropewalk.server")

MAX_UNIDENTIFIED = 4096
"""Connections without a detected protocol. A client sends its first bytes within a round trip, so only a flood reaches this."""

MAX_UNPROVEN = 256
"""Connections to the ring's port that have not proved the key of the ring. A node proves it within two round trips."""

CROWDED_IDLE_TIMEOUT = 1.0
"""How long an HTTP connection is kept open between requests while all their places are taken."""

HTTP_RESERVE = 256
"""HTTP connections beyond their bound that are still answered: health checks, while others keep idle connections open."""


class UndetectedConnection(Protocol):
    def drop(self) -> None: ...


@dataclass(frozen=True)
class ConnectionLimits:
    """0 means unlimited.

    Args:
        descriptors: connections of all kinds that the file descriptors permit.
        spare: further descriptors, reserved for connections other than clients'.
        idle_timeout: seconds an HTTP connection is kept open between requests.
        write_timeout: seconds after which an HTTP client that reads nothing is disconnected.
    """

    clients: int = 0
    http: int = 0
    descriptors: int = 0
    spare: int = 0
    idle_timeout: float = 75.0
    write_timeout: float = 10.0


class ConnectionAdmission:
    """Limits the connections of a process.

    Args:
        websockets: returns the number of open WebSocket connections.
        http: returns the number of open HTTP connections.
    """

    def __init__(
        self, limits: ConnectionLimits, refusals: Counter[str], websockets: Callable[[], int], http: Callable[[], int]
    ) -> None:
        self._limits = limits
        self._clients_elsewhere = 0
        self._http_elsewhere = 0
        self._share()
        self.refusals = refusals
        self._websockets = websockets
        self._http = http
        self._unknown: dict[UndetectedConnection, None] = {}
        self._waiting: dict[UndetectedConnection, None] = {}
        self._events = 0

    # --- how many there may be ----------------------------------------------------------------------------------------

    @property
    def limits(self) -> ConnectionLimits:
        return self._limits

    @limits.setter
    def limits(self, limits: ConnectionLimits) -> None:
        self._limits = limits
        self._share()

    def set_elsewhere(self, clients: int, http: int) -> None:
        """So many places are taken by connections of other processes."""
        self._clients_elsewhere = clients
        self._http_elsewhere = http
        self._share()

    def _share(self) -> None:
        """Compute the limit of this process, once per change: a new connection costs one comparison."""
        clients, http = self._limits.clients, self._limits.http
        self._most_clients = clients - self._clients_elsewhere if clients else math.inf
        self._most_http = http - self._http_elsewhere if http else math.inf

    # --- how many there are -------------------------------------------------------------------------------------------

    def clients(self) -> int:
        return self._websockets() + self._events

    def http_connections(self) -> int:
        """Without event streams, which are clients."""
        return self._http() - self._events

    def connections(self) -> int:
        return len(self._unknown) + len(self._waiting) + self._websockets() + self._http()

    # --- who may come in ----------------------------------------------------------------------------------------------

    def arrived(self, newcomer: UndetectedConnection) -> None:
        self._unknown[newcomer] = None
        files = self._limits.descriptors
        scarce = bool(files) and self.connections() > files
        oldest = next(iter(self._unknown))
        # If all other connections are identified, accept it from the reserve of files: it may be a health check.
        if oldest is not newcomer and (scarce or len(self._unknown) > MAX_UNIDENTIFIED):
            self.count(Refusal.DESCRIPTORS if scarce else Refusal.HEAD_TIMEOUT, connections=self.connections())
            del self._unknown[oldest]
            oldest.drop()

    def waits(self, newcomer: UndetectedConnection) -> None:
        """Its request is complete and waits for its turn. It is not dropped."""
        self._unknown.pop(newcomer, None)
        self._waiting[newcomer] = None

    def left(self, newcomer: UndetectedConnection) -> None:
        self._unknown.pop(newcomer, None)
        self._waiting.pop(newcomer, None)

    def is_crowded(self, unproven: int) -> bool:
        """Whether the oldest of so many unproven connections to the ring's port must make room."""
        files = self._limits.descriptors
        return unproven > MAX_UNPROVEN or (bool(files) and unproven > 1 and self.connections() + unproven > files)

    def client_may_enter(self) -> bool:
        clients = self.clients()
        if clients < self._most_clients:
            return self._is_there_a_file(clients)
        self.count(Refusal.CONNECTIONS, clients=clients + self._clients_elsewhere, max_conn=self._limits.clients)
        return False

    def http_may_enter(self) -> bool:
        http = self.http_connections()
        if http < self._most_http + HTTP_RESERVE:
            return http < self._limits.spare or self._is_there_a_file(self.clients())
        self.count(Refusal.CONNECTIONS, http_connections=http + self._http_elsewhere, max_http_conn=self._limits.http)
        return False

    def _is_there_a_file(self, clients: int) -> bool:
        if self._is_full(clients):
            self.count(Refusal.DESCRIPTORS, connections=self.connections())
            return False
        return True

    def _is_full(self, clients: int) -> bool:
        """Whether all files for connections are taken but the spare ones, which HTTP connections take first."""
        files = self._limits.descriptors
        return bool(files) and clients + max(0, self.http_connections() - self._limits.spare) >= files

    def idle_timeout(self) -> float:
        """For the next HTTP connection."""
        crowded = self.http_connections() >= self._most_http or self._is_full(self.clients())
        return CROWDED_IDLE_TIMEOUT if crowded else self._limits.idle_timeout

    def event_stream(self, answer: HttpHandler) -> HttpHandler:
        """A handler whose requests are clients and stay as long as they like."""

        async def handle(request: HttpRequest) -> HttpAnswer:
            if not self.client_may_enter():
                # Kept open, it would take the place of another connection.
                return refusal(503, "too many connections", {"Retry-After": "5"}, close=True)
            self._events += 1
            lost = request.exchange.when_lost
            lost.append(self._event_stream_ended)  # at once: the handler returns some turns of the event loop later
            try:
                return await answer(request)
            finally:
                if self._event_stream_ended in lost:
                    lost.remove(self._event_stream_ended)
                    self._event_stream_ended()

        return handle

    def _event_stream_ended(self) -> None:
        self._events -= 1

    # --- refusals -----------------------------------------------------------------------------------------------------

    def count(self, why: Refusal, **numbers: int) -> None:
        self.refusals[why] += 1
        logger.debug("connection refused", extra={"reason": why.value, **numbers})
