"""Limits the number of connections by kind. Each kind has its own limit, so that none can lock out another.

Clients (WebSocket and SSE) are limited by `--max_conn`, other HTTP connections (publishers, API, health, metrics) by
`--max_http_conn`. Connections whose protocol is not known yet count for neither: above a bound the oldest of them is
dropped. All together stay below the limit of open files.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from aiohttp import web

from ropewalk.adapters.endpoints.http_guard import HttpHandler, refusal
from ropewalk.model.refusals import Refusal

logger = logging.getLogger("ropewalk.server")

MOST_UNKNOWN = 4096
"""Connections of which nothing is known yet. A client says what it wants within a round trip, so only a flood fills this."""

CROWDED_IDLE_TIMEOUT = 1.0
"""How long an HTTP connection is kept open between requests while all their places are taken."""

HTTP_RESERVE = 256
"""HTTP connections beyond their bound that are still answered: health checks, while others keep idle connections open."""


class UndetectedConnection(Protocol):
    def drop(self) -> None: ...


@dataclass(frozen=True)
class ConnectionLimits:
    """0 sets no limit. `descriptors`: connections of every kind for which there are file descriptors."""

    clients: int = 0
    http: int = 0
    descriptors: int = 0
    idle_timeout: float = 75.0


class ConnectionAdmission:
    """`websockets` and `http` tell how many connections their libraries have open."""

    def __init__(
        self, limits: ConnectionLimits, refusals: Counter[str], websockets: Callable[[], int], http: Callable[[], int]
    ) -> None:
        self.limits = limits
        self.refusals = refusals
        self._websockets = websockets
        self._http = http
        self._unknown: dict[UndetectedConnection, None] = {}
        self._events = 0
        self._upgraded = 0

    # --- how many there are -------------------------------------------------------------------------------------------

    def clients(self) -> int:
        return self._websockets() + self._events

    def http_connections(self) -> int:
        """Without those that carry a client: an event stream, or a WebSocket that began as HTTP."""
        return self._http() - self._events - self._upgraded

    def connections(self) -> int:
        return len(self._unknown) + self._websockets() + self._http() - self._upgraded

    # --- who may come in ----------------------------------------------------------------------------------------------

    def arrived(self, newcomer: UndetectedConnection) -> None:
        self._unknown[newcomer] = None
        files = self.limits.descriptors
        scarce = bool(files) and self.connections() > files
        if scarce:
            self.count(Refusal.DESCRIPTORS, connections=self.connections())
        if scarce or len(self._unknown) > MOST_UNKNOWN:
            oldest = next(iter(self._unknown))
            del self._unknown[oldest]
            oldest.drop()

    def left(self, newcomer: UndetectedConnection) -> None:
        self._unknown.pop(newcomer, None)

    def client_may_enter(self) -> bool:
        most = self.limits.clients
        if not most or self.clients() < most:
            return True
        self.count(Refusal.CONNECTIONS, clients=self.clients(), max_conn=most)
        return False

    def http_may_enter(self) -> bool:
        most = self.limits.http
        if not most or self.http_connections() < most + HTTP_RESERVE:
            return True
        self.count(Refusal.CONNECTIONS, http_connections=self.http_connections(), max_http_conn=most)
        return False

    def idle_timeout(self) -> float:
        """For the next HTTP connection."""
        crowded = bool(self.limits.http) and self.http_connections() >= self.limits.http
        return CROWDED_IDLE_TIMEOUT if crowded else self.limits.idle_timeout

    def event_stream(self, answer: HttpHandler) -> HttpHandler:
        """A handler whose requests are clients and stay as long as they like."""

        async def handle(request: web.Request) -> web.StreamResponse:
            if not self.client_may_enter():
                return refusal(503, "too many connections", {"Retry-After": "5"})
            self._events += 1
            try:
                return await answer(request)
            finally:
                self._events -= 1

        return handle

    @contextmanager
    def upgraded(self) -> Iterator[None]:
        """While an HTTP connection is a WebSocket, it counts as that alone."""
        self._upgraded += 1
        try:
            yield
        finally:
            self._upgraded -= 1

    # --- what is refused ----------------------------------------------------------------------------------------------

    def count(self, why: Refusal, **numbers: int) -> None:
        self.refusals[why] += 1
        logger.debug("connection refused", extra={"reason": why.value, **numbers})
