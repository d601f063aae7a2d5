"""A store and a feed that behave like those behind a network: slow, repeating, losing, silent.

One `LosableStore` is the truth. Each node reaches it through a link of its own, and hears of what is registered through a feed
of its own.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from random import Random
from typing import TypeVar

from msgspec import Struct

from ropewalk.adapters.backends.workers.store import NodePresence, NodeSessions
from ropewalk.model.errors import Unanswered, Unavailable
from ropewalk.model.history import Gap, HistoryPage, Replay, StreamSummary
from ropewalk.model.journal import QueuedRows, Row
from ropewalk.model.messages import Position, Publication, Receipt, Registered, RemoteDisconnect, TransientRun, one_by_one
from ropewalk.model.presence import Member, PresenceEvent, PresencePage
from ropewalk.model.sessions import Renewal, SessionSnapshot, SessionTaken, SessionWrite
from ropewalk.ports import Deliver, Obey, PresenceStore, StreamStore
from ropewalk.testing.shared_store import LosableStore, NodeQueue

T = TypeVar("T")

LOST_ORDERS = 10
"""How much likelier an order is lost on its way to a node than a message: there are few of them."""

LATE_SECONDS = 5.0
"""How long after it was given up a request may still be done."""


class Faults(Struct):
    """Chances from 0 to 1, and seconds. They may be changed while the simulation runs."""

    lost: float = 0.02  # messages of the feed
    repeated: float = 0.05
    late: float = 0.1  # so that they are overtaken by others
    lateness: float = 1.0
    unavailable: float = 0.02  # requests to the store that it never hears of, and this is known
    unanswered: float = 0.02  # requests of which it is not known whether the store heard
    latency: float = 0.05  # of a request to the store, at most
    away_until: float = 0.0  # the store answers nobody before this time

    def heal(self) -> None:
        self.lost = self.repeated = self.late = self.unavailable = self.unanswered = self.away_until = 0.0


class Counts(Struct):
    """What the faults did."""

    lost: int = 0
    repeated: int = 0
    late: int = 0
    unavailable: int = 0
    unanswered: int = 0
    store_losses: int = 0  # times that the store came back without its data


class UnreliableLink:
    """What a node reaches the store through. `cut`: nothing gets through any more. `deaf`: everything does, and no answer comes
    back. `latency`: seconds that each request takes in any case. `stalled_until`: until then the node cannot say that it
    lives."""

    def __init__(self, faults: Faults, counts: Counts, chance: Random) -> None:
        self._faults = faults
        self._counts = counts
        self._chance = chance
        self.cut = self.deaf = False
        self.latency = 0.0
        self.stalled_until = 0.0
        self._late: set[asyncio.Future[None]] = set()

    async def ask(self, question: Callable[[], Awaitable[T]]) -> T:
        await self._request()
        answer = await question()
        await self._answer()
        return answer

    async def ask_lease(self, question: Callable[[], Awaitable[T]], late: bool = False) -> T:
        """`late`: what is not answered may also be done long after it was given up."""
        if asyncio.get_running_loop().time() < self.stalled_until:
            raise Unavailable("the node is stalled")
        if late and self._chance.random() < self._faults.unanswered:
            self._counts.unanswered += 1
            task = asyncio.ensure_future(self._do_late(question))
            self._late.add(task)
            task.add_done_callback(self._late.discard)
            raise Unanswered("it takes too long")
        return await self.ask(question)

    async def _do_late(self, question: Callable[[], Awaitable[object]]) -> None:
        losses = self._counts.store_losses
        await asyncio.sleep(self._chance.random() * LATE_SECONDS)
        if losses == self._counts.store_losses:  # a connection does not outlive the engine
            await question()

    async def _request(self) -> None:
        await asyncio.sleep(self.latency + self._chance.random() * self._faults.latency)
        away = asyncio.get_running_loop().time() < self._faults.away_until
        if away and self._chance.random() < 0.5:
            self._counts.unanswered += 1
            raise Unanswered("the store went away")
        if away or self.cut or self._chance.random() < self._faults.unavailable:
            self._counts.unavailable += 1
            raise Unavailable("the store cannot be reached")
        if self._chance.random() < self._faults.unanswered / 2:
            self._counts.unanswered += 1
            raise Unanswered("the request was lost")

    async def _answer(self) -> None:
        await asyncio.sleep(self._chance.random() * self._faults.latency)
        if self.deaf or self._chance.random() < self._faults.unanswered / 2:
            self._counts.unanswered += 1
            raise Unanswered("the answer was lost")


class UnreliableStreams:
    """Implements `ports.StreamStore`."""

    resolves_unanswered = False  # it recognises what has a uid
    answers_transient = False
    instant = False

    def __init__(self, store: LosableStore, link: UnreliableLink) -> None:
        self._store = store
        self._ask = link.ask

    @property
    def _inner(self) -> StreamStore:
        return self._store.memory.streams

    async def append(self, publications: Sequence[Publication]) -> list[Receipt]:
        return await self._ask(lambda: self._inner.append(publications))

    async def replay(self, stream: str, position: Position) -> Replay | Gap:
        return await self._ask(lambda: self._inner.replay(stream, position))

    async def since(self, stream: str, timestamp: float) -> Replay | Gap:
        return await self._ask(lambda: self._inner.since(stream, timestamp))

    async def tip(self, stream: str) -> Position:
        return await self._ask(lambda: self._inner.tip(stream))

    async def partition_key(self, stream: str) -> str:
        return await self._ask(lambda: self._inner.partition_key(stream))

    async def summaries(self, after: str, limit: int) -> list[StreamSummary]:
        return await self._inner.summaries(after, limit)

    async def page(self, stream: str, after: int, limit: int) -> HistoryPage | None:
        return await self._ask(lambda: self._inner.page(stream, after, limit))


class UnreliableSessions:
    """Implements `ports.SessionStore` and `ports.Leases`. `ended` is told which sessions the store gives out as over."""

    near = False

    def __init__(self, inner: NodeSessions, link: UnreliableLink, ended: Callable[[str], None]) -> None:
        self._inner = inner
        self._link = link
        self._ask = link.ask
        self._ended = ended

    async def save(self, sid: str, snapshot: SessionSnapshot, ttl: float) -> None:
        await self._ask(lambda: self._inner.save(sid, snapshot, ttl))

    async def peek(self, sid: str) -> SessionSnapshot | None:
        return await self._ask(lambda: self._inner.peek(sid))

    async def take(self, sid: str, successor: str = "") -> SessionSnapshot | None:
        return await self._ask(lambda: self._inner.take(sid, successor))

    async def revoke(self, ids: str) -> list[tuple[str, SessionSnapshot]]:
        return await self._ask(lambda: self._over(self._inner.revoke(ids)))

    async def expired(self, limit: int) -> list[tuple[str, SessionSnapshot]]:
        return await self._ask(lambda: self._over(self._inner.expired(limit)))

    async def abandoned(self) -> list[tuple[str, SessionSnapshot]]:
        return await self._inner.abandoned()

    async def renew(self, ttl: float, heard: Collection[str]) -> Renewal:
        return await self._link.ask_lease(lambda: self._inner.renew(ttl, heard))

    async def write(self, sessions: Sequence[SessionWrite]) -> list[SessionTaken]:
        return await self._link.ask_lease(lambda: self._inner.write(sessions), late=True)

    async def _over(self, answer: Awaitable[list[tuple[str, SessionSnapshot]]]) -> list[tuple[str, SessionSnapshot]]:
        given = await answer
        for sid, _ in given:
            self._ended(sid)
        return given


class UnreliablePresence:
    """Implements `ports.PresenceStore`."""

    def __init__(self, inner: PresenceStore, link: UnreliableLink) -> None:
        self._inner = inner
        self._ask = link.ask

    async def join(self, stream: str, sid: str, member: Member) -> list[PresenceEvent]:
        return await self._ask(lambda: self._inner.join(stream, sid, member))

    async def leave(self, stream: str, sid: str) -> list[PresenceEvent]:
        return await self._ask(lambda: self._inner.leave(stream, sid))

    async def detach(self, sid: str, ttl: float) -> None:
        await self._ask(lambda: self._inner.detach(sid, ttl))

    async def adopt(self, old_sid: str, new_sid: str) -> dict[str, Member]:
        return await self._ask(lambda: self._inner.adopt(old_sid, new_sid))

    async def expire(self) -> list[PresenceEvent]:
        return await self._ask(lambda: self._inner.expire())

    async def page(self, stream: str, after: str, limit: int) -> PresencePage:
        return await self._ask(lambda: self._inner.page(stream, after, limit))


class UnreliableQueue:
    """Implements `ports.RecordQueue`."""

    def __init__(self, inner: NodeQueue, link: UnreliableLink) -> None:
        self._inner = inner
        self._ask = link.ask

    async def claim(self, ttl: float) -> bool:
        return await self._ask(lambda: self._inner.claim(ttl))

    async def read(self, limit: int) -> QueuedRows:
        return await self._ask(lambda: self._inner.read(limit))

    async def remove(self, piece: QueuedRows) -> bool:
        return await self._ask(lambda: self._inner.remove(piece))

    async def add(self, rows: Sequence[Row]) -> bool:
        return await self._ask(lambda: self._inner.add(rows))

    def gauges(self) -> dict[str, float]:
        return self._inner.gauges()


class Air:
    """What carries messages from the store to every node, and orders to one. Implements the `Carrier` of a shared store."""

    def __init__(self, faults: Faults, counts: Counts, chance: Random) -> None:
        self.faults = faults
        self.counts = counts
        self.chance = chance
        self.feeds: list[UnreliableFeed] = []

    def carry(self, messages: Sequence[Registered]) -> None:
        for feed in self.feeds:
            for message in messages:
                feed.hear(message)

    def loses_order(self) -> bool:
        lost = self.chance.random() < self.faults.lost * LOST_ORDERS
        self.counts.lost += lost
        return lost

    def order(self, node: str, order: SessionTaken) -> None:
        for feed in self.feeds:
            if feed.node == node:
                feed.hear_order(order)


class UnreliableFeed:
    """Implements `ports.Feed` for one node."""

    exact = False
    tells_losses = False

    def __init__(self, air: Air, node: str) -> None:
        self._air = air
        self.node = node
        self._listening: set[str] = set()
        self._deliver: Deliver | None = None
        self._obey: Obey | None = None
        self._obeying: set[asyncio.Future[int]] = set()

    async def start(self, deliver: Deliver, obey: Obey, missed: Callable[[], None] = lambda: None) -> None:
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

    def publish_runs(self, runs: Sequence[TransientRun], confirm: bool = False) -> None:
        self.publish(one_by_one(runs))

    async def command(self, order: RemoteDisconnect) -> int:
        """A node that fails to obey does not keep the others from it. The order may be lost on its way to another node,
        which then hears from the store of the sessions that it revoked."""
        heard = [feed for feed in list(self._air.feeds) if feed is self or not self._air.loses_order()]
        nodes = [feed._obey(order) for feed in heard if feed._obey is not None]
        answers = await asyncio.gather(*nodes, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return sum(answer for answer in answers if isinstance(answer, int))

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
            asyncio.get_running_loop().call_later(self._delay(), self._arrive, message)

    def hear_order(self, order: SessionTaken) -> None:
        if not self._air.loses_order():
            asyncio.get_running_loop().call_later(self._delay(), self._arrive_order, order)

    def _delay(self) -> float:
        chance, faults = self._air.chance, self._air.faults
        if chance.random() >= faults.late:
            return 0.0
        self._air.counts.late += 1
        return chance.random() * faults.lateness

    def _arrive_order(self, order: SessionTaken) -> None:
        if self._obey is not None and self._deliver is not None:
            task = asyncio.ensure_future(self._obey(order))
            self._obeying.add(task)
            task.add_done_callback(self._obeying.discard)

    def _arrive(self, message: Registered) -> None:
        if self._deliver is not None:
            self._deliver([message])


class UnreliableBackend:
    """Implements `ports.Backend` for one node: the truth, seen through a bad network."""

    def __init__(self, store: LosableStore, air: Air, node: str, ended: Callable[[str], None]) -> None:
        self._store = store
        self.link = UnreliableLink(air.faults, air.counts, air.chance)
        self.streams = UnreliableStreams(store, self.link)
        self.sessions = self.leases = UnreliableSessions(NodeSessions(store, node), self.link, ended)
        self.presence = UnreliablePresence(NodePresence(store, node), self.link)
        self.record_queue = UnreliableQueue(NodeQueue(store, node), self.link)
        self.feed = UnreliableFeed(air, node)

    async def start(self) -> None:
        await self._store.start()

    async def stop(self) -> None:
        """The truth goes on."""

    def die(self) -> None:
        self.link.cut = True
        self.feed.die()

    def health(self) -> str:
        return ""

    async def sweep(self) -> None:
        await self.link.ask(self._store.sweep)

    def rules_changed(self) -> None:
        """The rules of the simulation stay."""

    def gauges(self) -> dict[str, float]:
        return self._store.gauges()
