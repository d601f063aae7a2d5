"""The node as its sessions use it."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Protocol, TypeVar

from ropewalk.core.quotas import ConnectionQuotas
from ropewalk.core.rules import Rulebook
from ropewalk.core.stats import Stats
from ropewalk.engine.subscription import Subscription
from ropewalk.model.commands import Command
from ropewalk.model.limits import Limits
from ropewalk.model.messages import RemoteDisconnect
from ropewalk.ports import Clock

S = TypeVar("S", contravariant=True)

Beat = tuple[float, int]
"""Interval of pings in seconds, and units of their timestamp per second: clients may choose both."""


class SessionNode(Protocol[S]):
    """The node of a session. `S` is `Session`: named so, this module does not import it."""

    @property
    def limits(self) -> Limits: ...
    @property
    def rules(self) -> Rulebook: ...
    @property
    def stats(self) -> Stats: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def quotas(self) -> ConnectionQuotas: ...

    def spawn(self, work: Coroutine[object, None, None]) -> asyncio.Task[None]: ...

    def begin(self, work: Callable[[], Coroutine[object, None, None]]) -> None:
        """In one of the next turns of the event loop, after sessions that began earlier."""

    async def handle(self, session: S, command: Command) -> bool:
        """True if it was granted."""

    def revocation(self, session: S, ids: str) -> RemoteDisconnect | None:
        """The remote disconnect of these ids that arrived while the session was opening, if any."""

    def accepted(self, session: S) -> None:
        """The session is live."""

    def opened(self, session: S) -> None:
        """The session was welcomed or refused."""

    def note_activity(self, session: S) -> None:
        """The client sent something."""

    def paused(self, session: S) -> None:
        """The client is not reading: writes are pending."""

    def dropped(self, session: S, subscription: Subscription) -> None:
        """Stop the deliveries of this subscription."""

    def dropped_all(self, session: S) -> None:
        """Stop the deliveries of all subscriptions of a session that ends."""

    def revoked(self, session: S, reason: str) -> None:
        """A departing session that would have been kept cannot be resumed."""

    def disconnected(self, session: S) -> None:
        """The connection is lost or closed."""

    def departing(self, session: S, reason: str) -> bool:
        """A live session ends. Returns False if no departure is needed."""

    async def depart(self, session: S) -> None:
        """Keep the session, or report its end to the application."""

    def departed(self, session: S) -> None:
        """`depart` has finished or failed."""
