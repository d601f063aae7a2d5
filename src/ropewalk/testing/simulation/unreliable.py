"""A store and a feed behind an unreliable network: requests and messages are delayed, repeated and lost.

All nodes share one `LosableStore`. Each node calls it through its own link and receives messages through its own feed.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from random import Random
from typing import TypeVar

from msgspec import Struct

from ropewalk.adapters.backends.memory.store import NodePresence
from ropewalk.adapters.backends.workers.store import LeasedSessions
from ropewalk.model.errors import Unanswered, Unavailable
from ropewalk.model.history import Gap, HistoryPage, Replay, StreamSummary
from ropewalk.model.journal import QueuedRows, Row
from ropewalk.model.messages import Position, Publication, Receipt, Registered, RemoteDisconnect, TransientRun, expand_runs
from ropewalk.model.presence import Member, PresenceEvent, PresencePage
from ropewalk.model.sessions import Renewal, SessionSnapshot, SessionTaken, SessionWrite
from ropewalk.ports import Deliver, OnDisconnectRequest, PresenceStore, StreamStore
from ropewalk.testing.shared_store import LosableStore, NodeQueue

T = TypeVar("T")

LOST_ORDERS = 10
"""How much more likely a disconnect request is lost than a message: they are rare."""

LATE_SECONDS = 5.0
"""How long after its timeout the store may still execute a request."""


class Faults(Struct):
    """Probabilities, and durations in seconds. They may change during the simulation."""

    lost: float = 0.02  # messages from the store to a node
    repeated: float = 0.05
    late: float = 0.1  # messages that others overtake
    lateness: float = 1.0  # maximum delay of these, in seconds
    unavailable: float = 0.02  # requests that fail before they reach the store
    unanswered: float = 0.02  # requests with an unknown result
    latency: float = 0.05  # maximum, of a request to the store
    away_until: float = 0.0  # the store is unreachable before this time

    def heal(self) -> None:
        self.lost = self.repeated = self.late = self.unavailable = self.unanswered = self.away_until = 0.0


class Counts(Struct):
    """How often each fault has occurred."""

    lost: int = 0
    repeated: int = 0
    late: int = 0
    unavailable: int = 0
    unanswered: int = 0
    store_losses: int = 0  # restarts of the store without its data


class UnreliableLink:
    """The connection of a node to the store.

    `cut`: all requests fail. `deaf`: requests arrive, and all answers are lost. `latency`: minimum seconds for each request.
    `stalled_until`: the node cannot renew its lease before this time.
    """

    def __init__(self, air: "Air", node: str) -> None:
        self._faults = air.faults
        self._counts = air.counts
        self._chance = air.chance
        self._record = air.record
        self._node = node
        self.cut = self.deaf = False
        self.latency = 0.0
        self.stalled_until = 0.0
        self._late: set[asyncio.Future[None]] = set()

    async def call(self, request: Callable[[], Awaitable[T]]) -> T:
        await self._send_request()
        answer = await request()
        await self._receive_answer()
        return answer

    async def call_lease(self, request: Callable[[], Awaitable[T]], late: bool = False) -> T:
        """`late`: the store may execute an unanswered request long after its timeout."""
        if asyncio.get_running_loop().time() < self.stalled_until:
            raise Unavailable("the node is stalled")
        if late and self._chance.random() < self._faults.unanswered:
            self._count_unanswered("late request")
            task = asyncio.ensure_future(self._call_late(request))
            self._late.add(task)
            task.add_done_callback(self._late.discard)
            raise Unanswered("request timed out")
        return await self.call(request)

    async def _call_late(self, request: Callable[[], Awaitable[object]]) -> None:
        losses = self._counts.store_losses
        await asyncio.sleep(self._chance.random() * LATE_SECONDS)
        if losses == self._counts.store_losses:  # a restart of the store closes its connections
            await request()

    async def _send_request(self) -> None:
        await asyncio.sleep(self.latency + self._chance.random() * self._faults.latency)
        away = asyncio.get_running_loop().time() < self._faults.away_until
        if away and self._chance.random() < 0.5:
            self._count_unanswered("store away")
            raise Unanswered("the store went away")
        if away or self.cut or self._chance.random() < self._faults.unavailable:
            self._counts.unavailable += 1
            self._record(f"{self._node}: store unavailable", b"")
            raise Unavailable("the store cannot be reached")
        if self._chance.random() < self._faults.unanswered / 2:
            self._count_unanswered("request lost")
            raise Unanswered("the request was lost")

    async def _receive_answer(self) -> None:
        await asyncio.sleep(self._chance.random() * self._faults.latency)
        if self.deaf or self._chance.random() < self._faults.unanswered / 2:
            self._count_unanswered("answer lost")
            raise Unanswered("the answer was lost")

    def _count_unanswered(self, reason: str) -> None:
        self._counts.unanswered += 1
        self._record(f"{self._node}: {reason}", b"")


class UnreliableStreams:
    """Implements `ports.StreamStore`."""

    resolves_unanswered = False  # it recognises a repeated uid
    confirms_transient = False
    instant = False

    def __init__(self, store: LosableStore, link: UnreliableLink) -> None:
        self._store = store
        self._call = link.call

    @property
    def _inner(self) -> StreamStore:
        return self._store.streams

    async def append(self, publications: Sequence[Publication]) -> list[Receipt]:
        return await self._call(lambda: self._inner.append(publications))

    async def replay(self, stream: str, position: Position) -> Replay | Gap:
        return await self._call(lambda: self._inner.replay(stream, position))

    async def since(self, stream: str, timestamp: float) -> Replay | Gap:
        return await self._call(lambda: self._inner.since(stream, timestamp))

    async def tip(self, stream: str) -> Position:
        return await self._call(lambda: self._inner.tip(stream))

    async def partition_key(self, stream: str) -> str:
        return await self._call(lambda: self._inner.partition_key(stream))

    async def summaries(self, after: str, limit: int) -> list[StreamSummary]:
        return await self._inner.summaries(after, limit)

    async def page(self, stream: str, after: int, limit: int) -> HistoryPage | None:
        return await self._call(lambda: self._inner.page(stream, after, limit))


class UnreliableSessions:
    """Implements `ports.SessionStore` and `ports.Leases`. `ended` is called for each session whose end the store reports."""

    same_host = False

    def __init__(self, inner: LeasedSessions, link: UnreliableLink, ended: Callable[[str], None]) -> None:
        self._inner = inner
        self._link = link
        self._call = link.call
        self._ended = ended

    async def save(self, sid: str, snapshot: SessionSnapshot, ttl: float) -> None:
        await self._call(lambda: self._inner.save(sid, snapshot, ttl))

    async def peek(self, sid: str) -> SessionSnapshot | None:
        return await self._call(lambda: self._inner.peek(sid))

    async def take(self, sid: str, successor: str = "") -> SessionSnapshot | None:
        return await self._call(lambda: self._inner.take(sid, successor))

    async def revoke(self, ids: str, reconnect: bool) -> list[tuple[str, SessionSnapshot]]:
        return await self._call(lambda: self._report_ended(self._inner.revoke(ids, reconnect)))

    async def take_expired(self, limit: int) -> list[tuple[str, SessionSnapshot]]:
        return await self._call(lambda: self._report_ended(self._inner.take_expired(limit)))

    async def take_abandoned(self) -> list[tuple[str, SessionSnapshot]]:
        return await self._inner.take_abandoned()

    async def renew(self, ttl: float, received: Collection[str]) -> Renewal:
        return await self._link.call_lease(lambda: self._inner.renew(ttl, received))

    async def write(self, sessions: Sequence[SessionWrite]) -> list[SessionTaken]:
        return await self._link.call_lease(lambda: self._inner.write(sessions), late=True)

    async def _report_ended(self, answer: Awaitable[list[tuple[str, SessionSnapshot]]]) -> list[tuple[str, SessionSnapshot]]:
        sessions = await answer
        for sid, _ in sessions:
            self._ended(sid)
        return sessions


class UnreliablePresence:
    """Implements `ports.PresenceStore`."""

    def __init__(self, inner: PresenceStore, link: UnreliableLink) -> None:
        self._inner = inner
        self._call = link.call

    async def join(self, stream: str, sid: str, member: Member) -> list[PresenceEvent]:
        return await self._call(lambda: self._inner.join(stream, sid, member))

    async def leave(self, stream: str, sid: str) -> list[PresenceEvent]:
        return await self._call(lambda: self._inner.leave(stream, sid))

    async def detach(self, sid: str, ttl: float) -> None:
        await self._call(lambda: self._inner.detach(sid, ttl))

    async def adopt(self, old_sid: str, new_sid: str) -> dict[str, Member]:
        return await self._call(lambda: self._inner.adopt(old_sid, new_sid))

    async def expire(self) -> list[PresenceEvent]:
        return await self._call(lambda: self._inner.expire())

    async def members(self, stream: str, after: str, limit: int) -> PresencePage:
        return await self._call(lambda: self._inner.members(stream, after, limit))


class UnreliableQueue:
    """Implements `ports.RecordQueue`."""

    def __init__(self, inner: NodeQueue, link: UnreliableLink) -> None:
        self._inner = inner
        self._call = link.call

    async def claim(self, ttl: float) -> bool:
        return await self._call(lambda: self._inner.claim(ttl))

    async def read(self, limit: int) -> QueuedRows:
        return await self._call(lambda: self._inner.read(limit))

    async def remove(self, piece: QueuedRows) -> bool:
        return await self._call(lambda: self._inner.remove(piece))

    async def add(self, rows: Sequence[Row]) -> bool:
        return await self._call(lambda: self._inner.add(rows))

    def gauges(self) -> dict[str, float]:
        return self._inner.gauges()


class Air:
    """Sends messages from the store to every node, and disconnect requests to one. Implements the `Carrier` of a shared store.

    Args:
        faults: how likely each fault is.
        counts: the faults so far.
        chance: decides which faults happen.
        record: called with every fault and every arrival at a node, and its payload.
    """

    def __init__(
        self, faults: Faults, counts: Counts, chance: Random, record: Callable[[str, bytes], None] = lambda event, data: None
    ) -> None:
        self.faults = faults
        self.counts = counts
        self.chance = chance
        self.record = record
        self.feeds: list[UnreliableFeed] = []

    def carry(self, messages: Sequence[Registered]) -> None:
        for feed in self.feeds:
            for message in messages:
                feed.send(message)

    def loses_order(self) -> bool:
        lost = self.chance.random() < self.faults.lost * LOST_ORDERS
        self.counts.lost += lost
        return lost

    def order(self, node: str, order: SessionTaken) -> None:
        for feed in self.feeds:
            if feed.node == node:
                feed.send_order(order)


class UnreliableFeed:
    """Implements `ports.Feed` for one node."""

    exact = False
    reports_losses = False

    def __init__(self, air: Air, node: str) -> None:
        self._air = air
        self.node = node
        self._listening: set[str] = set()
        self._deliver: Deliver | None = None
        self._obey: OnDisconnectRequest | None = None
        self._order_tasks: set[asyncio.Future[int]] = set()

    async def start(self, deliver: Deliver, obey: OnDisconnectRequest, missed: Callable[[], None] = lambda: None) -> None:
        self._deliver, self._obey = deliver, obey
        self._air.feeds.append(self)

    async def stop(self) -> None:
        self.die()

    def die(self) -> None:
        """Discard all messages from now on, including those in flight."""
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
        self.publish(expand_runs(runs))

    async def disconnect(self, request: RemoteDisconnect) -> int:
        """Send the request to all nodes, even if one of them fails. It may be lost on its way to another node, which then
        learns from the store that its sessions were revoked."""
        reached = [feed for feed in list(self._air.feeds) if feed is self or not self._air.loses_order()]
        nodes = [feed._obey(request) for feed in reached if feed._obey is not None]
        answers = await asyncio.gather(*nodes, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return sum(answer for answer in answers if isinstance(answer, int))

    def health(self) -> str:
        return ""

    def send(self, message: Registered) -> None:
        if message.stream not in self._listening:
            return
        chance, faults, counts = self._air.chance, self._air.faults, self._air.counts
        if chance.random() < faults.lost:
            counts.lost += 1
            self._air.record(f"{self.node}: lost {_label(message)}", b"")
            return
        copies = 1
        if chance.random() < faults.repeated:
            counts.repeated += 1
            copies = 2
        for _ in range(copies):
            asyncio.get_running_loop().call_later(self._delay(), self._arrive, message)

    def send_order(self, order: SessionTaken) -> None:
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
            self._air.record(f"{self.node}: {order}", b"")
            task = asyncio.ensure_future(self._obey(order))
            self._order_tasks.add(task)
            task.add_done_callback(self._order_tasks.discard)

    def _arrive(self, message: Registered) -> None:
        if self._deliver is not None:
            self._air.record(f"{self.node}: {_label(message)}", message.payload)
            self._deliver([message])


def _label(message: Registered) -> str:
    return f"{message.stream} {message.epoch}/{message.offset}"


class UnreliableBackend:
    """Implements `ports.Backend` for one node: the shared store behind an unreliable network."""

    def __init__(self, store: LosableStore, air: Air, node: str, ended: Callable[[str], None]) -> None:
        self._store = store
        self.link = UnreliableLink(air, node)
        self.streams = UnreliableStreams(store, self.link)
        self.sessions = self.leases = UnreliableSessions(LeasedSessions(store, node), self.link, ended)
        self.presence = UnreliablePresence(NodePresence(store, node), self.link)
        self.record_queue = UnreliableQueue(NodeQueue(store, node), self.link)
        self.feed = UnreliableFeed(air, node)

    async def start(self) -> None:
        """The shared store is running."""

    async def stop(self) -> None:
        """The shared store keeps running."""

    def die(self) -> None:
        self.link.cut = True
        self.feed.die()

    def health(self) -> str:
        return ""

    async def sweep(self) -> None:
        await self.link.call(self._store.sweep)

    def reload_rules(self) -> None:
        """The rules of the simulation never change."""

    def gauges(self) -> dict[str, float]:
        return self._store.gauges()
