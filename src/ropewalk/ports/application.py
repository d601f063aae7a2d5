"""Who may come in, and what a channel does."""

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
    """One way to authenticate a client. They are asked in order; the first answer that is not None counts."""

    async def authenticate(self, request: ConnectRequest, sid: str) -> Accepted | Refused | None: ...


class Channels(Protocol):
    """One way to answer channel subscriptions. They are asked in order; the first answer that is not None counts."""

    async def subscribe(self, ids: str, identifier: str) -> Subscribed | Rejected | None: ...


class Application(Protocol):
    """The program behind the server that decides who connects and what its channels do.

    Calls of one session come one after another, in order: connect, then commands and restores, then one disconnect. A session
    that was authenticated in another way begins with a command. Every call ends within a bounded time. It may raise
    `Unavailable` (it could not be asked), of that `Unanswered` (it was asked and gave no answer in time), or
    `ApplicationError` (it was asked and failed); they concern this call only. Before its start and after its stop it cannot
    be asked.
    """

    async def start(self, publisher: Publisher) -> None: ...
    async def stop(self) -> None:
        """Calls under way come to an end. Again, or without a start, is harmless."""

    async def connect(self, context: CallContext, wanted: Callable[[], bool]) -> ConnectResult:
        """Calls may have to wait before they are made. One that is no longer `wanted` when its turn comes is not made, and
        raises `Unavailable`: in a reconnect storm, clients that gave up would keep those who came after them waiting."""

    async def command(self, call: CommandCall) -> CommandResult: ...

    async def restored(self, restore_call: RestoreCall) -> RestoreResult:
        """Empty if the application does not handle restores."""

    async def disconnect(self, disconnect_call: DisconnectCall) -> None:
        """The application hears of it once. `Unavailable` means that it may be told again."""

    def health(self) -> str:
        """Why it cannot be called now, for the health page. "" means healthy."""

    def gauges(self) -> dict[str, float]:
        """For the metrics page: app_calls_active, app_calls_waiting."""
