"""A store and a feed that behave like those behind a network: slow, repeating, losing, silent.

One memory backend is the truth. Each node reaches it through a link of its own, and hears of what is registered through a feed
of its own.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from random import Random

from msgspec import Struct

from ropewalk.model.errors import Unanswered, Unavailable
from ropewalk.model.history import Gap, HistoryPage, Replay, StreamSummary
from ropewalk.model.messages import Position, Publication, Receipt, Registered, RemoteDisconnect
from ropewalk.ports import Backend, PresenceStore, SessionStore, StreamStore


class Faults(Struct):
    """Chances from 0 to 1, and seconds. They may be changed while the simulation runs."""

    lost: float = 0.02  # messages of the feed
    repeated: float = 0.05
    late: float = 0.1  # so that they are overtaken by others
    lateness: float = 1.0
    unavailable: float = 0.02  # requests to the store that it never hears of, and this is known
    unanswered: float = 0.02  # requests of which it is not known whether the store heard
    latency: float = 0.05  # of a request to the store, at most

    def heal(self) -> None:
        self.lost = self.repeated = self.late = self.unavailable = self.unanswered = 0.0


class Counts(Struct):
    """What the faults did."""

    lost: int = 0
    repeated: int = 0
    late: int = 0
    unavailable: int = 0
    unanswered: int = 0


class UnreliableStreams:
    """Implements `ports.StreamStore`."""

    def __init__(self, inner: StreamStore, faults: Faults, counts: Counts, chance: Random) -> None:
        self._inner = inner
        self._faults = faults
        self._counts = counts
        self._chance = chance

    async def append(self, publications: Sequence[Publication]) -> list[Receipt]:
        await self._request()
        receipts = await self._inner.append(publications)
        await self._answer()
        return receipts

    async def replay(self, stream: str, position: Position) -> Replay | Gap:
        await self._request()
        answer = await self._inner.replay(stream, position)
        await self._answer()
        return answer

    async def since(self, stream: str, timestamp: float) -> Replay | Gap:
        await self._request()
        answer = await self._inner.since(stream, timestamp)
        await self._answer()
        return answer

    async def tip(self, stream: str) -> Position:
        await self._request()
        answer = await self._inner.tip(stream)
        await self._answer()
        return answer

    async def partition_key(self, stream: str) -> str:
        await self._request()
        answer = await self._inner.partition_key(stream)
        await self._answer()
        return answer

    async def summaries(self, after: str, limit: int) -> list[StreamSummary]:
        return await self._inner.summaries(after, limit)

    async def page(self, stream: str, after: int, limit: int) -> HistoryPage | None:
        await self._request()
        answer = await self._inner.page(stream, after, limit)
        await self._answer()
        return answer

    async def _request(self) -> None:
        await asyncio.sleep(self._chance.random() * self._faults.latency)
        if self._chance.random() < self._faults.unavailable:
            self._counts.unavailable += 1
            raise Unavailable("the store cannot be reached")
        if self._chance.random() < self._faults.unanswered / 2:
            self._counts.unanswered += 1
            raise Unanswered("the request was lost")

    async def _answer(self) -> None:
        await asyncio.sleep(self._chance.random() * self._faults.latency)
        if self._chance.random() < self._faults.unanswered / 2:
            self._counts.unanswered += 1
            raise Unanswered("the answer was lost")


Deliver = Callable[[Sequence[Registered]], None]
Obey = Callable[[RemoteDisconnect], Awaitable[int]]


class Air:
    """What carries messages from the store to every node."""

    def __init__(self, faults: Faults, counts: Counts, chance: Random) -> None:
        self.faults = faults
        self.counts = counts
        self.chance = chance
        self.feeds: list[UnreliableFeed] = []

    def carry(self, messages: Sequence[Registered]) -> None:
        for feed in self.feeds:
            for message in messages:
                feed.hear(message)


class UnreliableFeed:
    """Implements `ports.Feed` for one node."""

    exact = False

    def __init__(self, air: Air) -> None:
        self._air = air
        self._listening: set[str] = set()
        self._deliver: Deliver | None = None
        self._obey: Obey | None = None

    async def start(self, deliver: Deliver, obey: Obey) -> None:
        self._deliver, self._obey = deliver, obey
        self._air.feeds.append(self)

    async def stop(self) -> None:
        self.die()

    def die(self) -> None:
        """Nothing comes through any more, not even what is under way."""
        self._deliver = None
        if self in self._air.feeds:
            self._air.feeds.remove(self)

    async def listen(self, stream: str) -> None:
        await asyncio.sleep(self._air.chance.random() * self._air.faults.latency)
        self._listening.add(stream)

    def unlisten(self, stream: str) -> None:
        self._listening.discard(stream)

    def publish(self, messages: Sequence[Registered]) -> None:
        self._air.carry(messages)

    async def command(self, order: RemoteDisconnect) -> int:
        return sum([await feed._obey(order) for feed in list(self._air.feeds) if feed._obey is not None])

    def health(self) -> str:
        return ""

    def hear(self, message: Registered) -> None:
        if message.stream not in self._listening:
            return
        chance, faults, counts = self._air.chance, self._air.faults, self._air.counts
        if chance.random() < faults.lost:
            counts.lost += 1
            return
        copies = 1
        if chance.random() < faults.repeated:
            counts.repeated += 1
            copies = 2
        for _ in range(copies):
            delay = 0.0
            if chance.random() < faults.late:
                counts.late += 1
                delay = chance.random() * faults.lateness
            asyncio.get_running_loop().call_later(delay, self._arrive, message)

    def _arrive(self, message: Registered) -> None:
        if self._deliver is not None:
            self._deliver([message])


class UnreliableBackend:
    """Implements `ports.Backend` for one node: the truth, seen through a bad network."""

    def __init__(self, inner: Backend, air: Air) -> None:
        self._inner = inner
        self.streams = UnreliableStreams(inner.streams, air.faults, air.counts, air.chance)
        self.feed = UnreliableFeed(air)

    @property
    def sessions(self) -> SessionStore:
        return self._inner.sessions

    @property
    def presence(self) -> PresenceStore:
        return self._inner.presence

    async def start(self) -> None:
        """The truth has started already."""

    async def stop(self) -> None:
        """The truth goes on."""

    def health(self) -> str:
        return ""

    async def sweep(self) -> None:
        await self._inner.sweep()

    def gauges(self) -> dict[str, float]:
        return self._inner.gauges()
