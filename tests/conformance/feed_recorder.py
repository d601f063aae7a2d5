"""A receiver for the feed of a backend, which records everything."""

from collections.abc import Collection, Sequence

from ropewalk.model.messages import Deliverable, Registered, expand_runs
from ropewalk.model.sessions import EndRequest


class FeedRecorder:
    """The messages and requests that one node received.

    Args:
        ended: the number of sessions that it reports for each request.
    """

    def __init__(self, ended: int = 0) -> None:
        self.messages: list[Registered] = []
        self.orders: list[EndRequest] = []
        self.missed = 0
        self._ended = ended

    def miss(self, streams: Collection[str] | None = None) -> None:
        self.missed += 1

    def deliver(self, messages: Sequence[Deliverable]) -> None:
        self.messages += expand_runs(messages)

    async def obey(self, order: EndRequest) -> int:
        self.orders.append(order)
        return self._ended

    async def has(self, *payloads: bytes) -> None:
        assert set(payloads) <= {message.payload for message in self.messages}

    @property
    def payloads(self) -> list[bytes]:
        return [message.payload for message in self.messages]
