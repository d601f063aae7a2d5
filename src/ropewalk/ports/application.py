"""Authentication, channel subscriptions, and calls to the application."""

from collections.abc import Callable
from typing import Protocol

from ropewalk.model.application import (
    CallContext,
    CommandCall,
    CommandResult,
    ConnectResult,
    DisconnectCall,
    RestoreCall,
    RestoreResult,
)
from ropewalk.model.sessions import Accepted, ConnectRequest, Refused, Rejected, Subscribed
from ropewalk.ports.endpoints import Publisher


class Authenticator(Protocol):
    """One way to authenticate a client. Several are tried in order; the first result that is not None counts."""

    async def authenticate(self, request: ConnectRequest, sid: str) -> Accepted | Refused | None: ...


class Channels(Protocol):
    """One way to decide about subscriptions. Several are tried in order; the first result that is not None counts."""

    async def subscribe(self, ids: str, identifier: str) -> Subscribed | Rejected | None: ...


class Application(Protocol):
    """The program behind the server that decides who connects and what its channels do.

    The calls of one session are sequential: connect, then commands and restores, then one disconnect. A session that another
    authenticator accepted begins with a command. Every call ends within a bounded time.

    Raises `Unavailable` if the call was not made, `Unanswered` (a kind of it) after a timeout, and `ApplicationError` if the
    application failed. These concern this call only. Before `start` and after `stop` all calls raise `Unavailable`.
    """

    async def start(self, publisher: Publisher) -> None: ...
    async def stop(self) -> None:
        """Waits for active calls. May be repeated, and called without a start."""

    async def connect(self, context: CallContext, wanted: Callable[[], bool]) -> ConnectResult:
        """A call may wait for its turn. If it is no longer `wanted` by then, it is not made and raises `Unavailable`, so that
        in a reconnect storm clients that gave up do not delay later ones."""

    async def command(self, call: CommandCall) -> CommandResult: ...

    async def restored(self, restore_call: RestoreCall) -> RestoreResult:
        """Returns an empty result if the application does not handle restores."""

    async def disconnect(self, disconnect_call: DisconnectCall) -> None:
        """Reports the end of a session, once. After `Unavailable` the caller may report it again."""

    def health(self) -> str:
        """The problem for the health page, or "" if healthy."""

    def gauges(self) -> dict[str, float]:
        """For the metrics page: app_calls_active, app_calls_waiting."""
