"""Hooks of the backend suites (create a backend, advance its clock, let calls fail) and helpers for common steps."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from enum import StrEnum

from msgspec import Struct

from ropewalk.model.limits import StoreLimits
from ropewalk.model.messages import Position, Publication, Receipt, Registered
from ropewalk.model.rules import StreamRule, StreamRules
from ropewalk.ports import Backend, Clock, PresenceStore, RecordQueue, SessionStore, StreamStore
from ropewalk.testing.clock import ManualClock


class BackendSetup(Struct, frozen=True):
    """Settings of the backend under test."""

    clock: Clock
    default: StreamRules = StreamRules()
    rules: tuple[StreamRule, ...] = ()
    limits: StoreLimits = StoreLimits(dedup_ttl=60.0, dedup_limit=1000, max_members=100)


class StoreFault(StrEnum):
    """How calls to a store may fail."""

    NONE = "none"
    UNAVAILABLE = "unavailable"  # they are not sent, and the caller knows
    UNANSWERED = "unanswered"  # they are carried out, and the response is lost
    SLOW = "slow"  # they are not sent before the fault ends


class BackendRig:
    """Hooks and helpers of the suites."""

    clock: ManualClock

    def make(self, setup: BackendSetup) -> Backend:
        """Return a new, empty backend, not started."""
        raise NotImplementedError

    async def advance(self, seconds: float) -> None:
        """Advance the backend's time. Override it if the backend does not use the clock of its setup."""
        self.clock.advance(seconds)

    @asynccontextmanager
    async def running(
        self,
        default: StreamRules = StreamRules(history_limit=5, history_ttl=100.0),  # noqa: B008 - frozen
        rules: Sequence[StreamRule] = (),
        dedup_limit: int = 1000,
        max_members: int = 100,
    ) -> AsyncIterator[Backend]:
        self.clock = ManualClock()
        limits = StoreLimits(dedup_ttl=60.0, dedup_limit=dedup_limit, max_members=max_members)
        setup = BackendSetup(self.clock, default, tuple(rules), limits)
        backend = self.make(setup)
        await backend.start()
        try:
            yield backend
        finally:
            await backend.stop()


class SharedBackendRig(BackendRig):
    """Hooks for a store that several nodes share. Cases for one backend run on two instances that alternate."""

    def make_two(self, setup: BackendSetup) -> tuple[Backend, Backend]:
        """Return two instances on one new, empty store, as two nodes have them; not started."""
        raise NotImplementedError

    def disturb(self, backend: Backend, fault: StoreFault) -> None:
        """Let all further calls of this instance to its store fail in this way."""
        raise NotImplementedError

    def make(self, setup: BackendSetup) -> Backend:
        return Alternating(*self.make_two(setup))

    @asynccontextmanager
    async def two_nodes(self) -> AsyncIterator[tuple["SharingNode", "SharingNode"]]:
        self.clock = ManualClock()
        first, second = self.make_two(BackendSetup(self.clock))
        for backend in (first, second):
            await backend.start()
        try:
            yield SharingNode(first), SharingNode(second)
        finally:
            for backend in (first, second):
                await backend.stop()


class SharingNode:
    """One of several nodes on a store: its backend and its ports."""

    def __init__(self, backend: Backend) -> None:
        assert backend.leases is not None
        self.backend = backend
        self.leases = backend.leases
        self.sessions = backend.sessions
        self.presence = backend.presence

    @property
    def queue(self) -> RecordQueue:
        assert self.backend.record_queue is not None
        return self.backend.record_queue


class Alternating:
    """Implements `ports.Backend`: every access to a store goes to the other one of two instances."""

    def __init__(self, first: Backend, second: Backend) -> None:
        self._instances = [first, second]
        self.feed, self.leases, self.record_queue = first.feed, first.leases, first.record_queue
        self.health = first.health

    def _next(self) -> Backend:
        self._instances.reverse()
        return self._instances[0]

    @property
    def streams(self) -> StreamStore:
        return self._next().streams

    @property
    def sessions(self) -> SessionStore:
        return self._next().sessions

    @property
    def presence(self) -> PresenceStore:
        return self._next().presence

    async def start(self) -> None:
        for backend in self._instances:
            await backend.start()

    async def stop(self) -> None:
        for backend in self._instances:
            await backend.stop()

    async def sweep(self) -> None:
        await self._next().sweep()

    def gauges(self) -> dict[str, float]:
        return self._instances[0].gauges()  # of the one that has swept last

    def reload_rules(self) -> None:
        for backend in self._instances:
            backend.reload_rules()


async def publish(backend: Backend, stream: str, count: int = 1) -> list[Registered]:
    """Append `count` numbered publications to a stream. Their timestamp is set if the last one is kept in the history."""
    batch = [Publication(stream, b"%d" % number) for number in range(1, count + 1)]
    receipts = await backend.streams.append(batch)
    page = await backend.streams.page(stream, receipts[-1].offset - 1, 1)
    now = page.messages[0].timestamp if page and page.messages else 0.0
    pairs = zip(batch, receipts, strict=True)
    return [Registered(stream, item.payload, now, receipt.epoch, receipt.offset) for item, receipt in pairs]


def at(message: Receipt | Registered) -> Position:
    return Position(message.epoch, message.offset)


def offsets(messages: Sequence[Registered]) -> list[int]:
    return [message.offset for message in messages]
