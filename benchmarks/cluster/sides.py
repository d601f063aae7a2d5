"""The two sides of a measurement: a backend with two nodes, and a bare client of its engine, with the same interface."""

from collections.abc import Callable, Sequence
from typing import Protocol

from ropewalk.model.messages import Deliverable, Publication, RemoteDisconnect, expand_runs
from ropewalk.model.sessions import SessionTaken, SessionWanted
from ropewalk.ports import Backend

Heard = Callable[[bytes], None]


class Side(Protocol):
    """Opened by its maker."""

    async def publish(self, stream: str, payload: bytes, uid: str = "") -> None:
        """Store the message and deliver it; returns when the engine has acknowledged it. A `uid` makes it
        idempotent if the side supports that."""

    async def send(self, stream: str, payload: bytes) -> None:
        """The cheapest way to deliver a message to subscribers."""

    async def listen(self, stream: str, heard: Heard) -> None:
        """On another connection than that of the publisher. One stream and one listener."""

    async def close(self) -> None: ...


class Nodes:
    """Two nodes of one cluster: one publishes and the other one listens. Of a backend of one process both are the same."""

    def __init__(self, publishing: Backend, listening: Backend) -> None:
        self._publishing, self._listening = publishing, listening
        self._heard: Heard | None = None
        self.published = 0

    async def open(self) -> None:
        for backend in self._each():
            await backend.start()
            if trouble := backend.health():
                raise AssertionError(f"the backend does not work: {trouble}")
        await self._listening.feed.start(self._deliver, self._disconnect)

    async def publish(self, stream: str, payload: bytes, uid: str = "") -> None:
        await self._publishing.streams.append((Publication(stream, payload, uid=uid),))
        self.published += 1

    send = publish

    async def listen(self, stream: str, heard: Heard) -> None:
        self._heard = heard
        if not self._listening.feed.exact:
            await self._listening.feed.listen(stream)

    async def close(self) -> None:
        await self._listening.feed.stop()
        for backend in self._each():
            await backend.stop()

    async def registered(self, streams: Sequence[str]) -> int:
        """How many publications of these streams the other node knows of."""
        return sum([(await self._listening.streams.tip(stream)).offset for stream in streams])

    def _each(self) -> tuple[Backend, ...]:
        return tuple({id(backend): backend for backend in (self._publishing, self._listening)}.values())

    def _deliver(self, messages: Sequence[Deliverable]) -> None:
        if self._heard is not None:
            for message in expand_runs(messages):
                self._heard(message.payload)

    async def _disconnect(self, order: RemoteDisconnect | SessionTaken | SessionWanted) -> int:
        return 0
