"""The feed of a single process: a call.

Invariant: a message is delivered in the step in which it becomes readable, so none is lost, late or repeated.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from ropewalk.model.messages import Deliverable, RemoteDisconnect, TransientRun
from ropewalk.ports import Deliver


def _nobody(messages: Sequence[Deliverable]) -> None:
    """No one listens before the node has started."""


class MemoryFeed(Protocol):
    """Takes what the store registers and publishes, in order."""

    publish: Deliver


class LocalFeed:
    """Implements `ports.Feed` and `ports.PrefixFeed`."""

    exact = True
    reports_losses = True

    def __init__(self) -> None:
        self.publish: Deliver = _nobody

    async def start(
        self, deliver: Deliver, obey: Callable[[RemoteDisconnect], Awaitable[int]], missed: Callable[[], None] = lambda: None
    ) -> None:
        self.publish = deliver  # itself, not a method around it
        self._obey = obey

    async def stop(self) -> None:
        self.publish = _nobody

    def publish_runs(self, runs: Sequence[TransientRun], confirm: bool = False) -> None:
        self.publish(runs)

    async def listen(self, stream: str) -> None:
        """It receives everything anyway."""

    def unlisten(self, stream: str) -> None:
        """As `listen`."""

    async def listen_prefix(self, prefix: bytes) -> None:
        """As `listen`."""

    def unlisten_prefix(self, prefix: bytes) -> None:
        """As `listen`."""

    async def disconnect(self, request: RemoteDisconnect) -> int:
        return await self._obey(request)

    def health(self) -> str:
        return ""
