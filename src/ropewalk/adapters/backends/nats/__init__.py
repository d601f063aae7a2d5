"""The NATS backend: streams, sessions and presence of all nodes, kept by JetStream.

Invariant: every node writes to JetStream directly, and JetStream orders the writes. A node owns only its live connections.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from secrets import token_urlsafe

import msgspec
from msgspec import Struct
from nats.aio.msg import Msg

from ropewalk.adapters.backends.nats import jets
from ropewalk.adapters.backends.nats.appends import Appends, Lane
from ropewalk.adapters.backends.nats.feed import NatsFeed
from ropewalk.adapters.backends.nats.leases import NatsLeases, PeerShardTips
from ropewalk.adapters.backends.nats.link import RETRY_SECONDS
from ropewalk.adapters.backends.nats.names import NatsOptions, ShardNames
from ropewalk.adapters.backends.nats.presence import NatsPresence
from ropewalk.adapters.backends.nats.queue import NatsRecordQueue
from ropewalk.adapters.backends.nats.sessions import NatsSessions
from ropewalk.adapters.backends.nats.shard import JetShard
from ropewalk.adapters.backends.nats.streams import NatsStreams, count_streams
from ropewalk.adapters.backends.nats.table import Applied, Change, Table
from ropewalk.connections.nats import NatsAddress
from ropewalk.core.ring import locate_shard
from ropewalk.core.rules import Rulebook
from ropewalk.core.server_publications import presence_publication
from ropewalk.model.errors import Unavailable
from ropewalk.model.limits import STORE_LIMITS, StoreLimits
from ropewalk.model.messages import RemoteDisconnect, build_transient
from ropewalk.model.presence import PresenceEvent
from ropewalk.model.sessions import SessionTaken
from ropewalk.ports import Clock, NodeName

KEPT_SECONDS = 60.0


class KeptOrder(Struct, frozen=True):
    node: str
    order: RemoteDisconnect


class NatsOrders:
    """Remote disconnects for all nodes, kept for a minute for nodes that reconnect.

    Args:
        node: this node. It does not receive its own requests.
    """

    def __init__(self, table: Table, node: str, disconnect: Callable[[RemoteDisconnect], None]) -> None:
        self._table = table
        self._node = node
        self._disconnect = disconnect

    async def keep(self, order: RemoteDisconnect) -> None:
        data = msgspec.msgpack.encode(KeptOrder(self._node, order))
        await self._table.write([Change(f"c.{token_urlsafe(12)}", data, ttl=KEPT_SECONDS)])

    def apply(self, applied: Applied) -> None:
        order = msgspec.msgpack.decode(applied.data, type=KeptOrder)
        if applied.fresh and order.node != self._node:
            self._disconnect(order.order)


logger = logging.getLogger("ropewalk.nats")

CONNECT_SECONDS = 3.0
START_SECONDS = 10.0
"""Timeouts of the start for the connection to NATS and for JetStream. After them the node serves, but is unhealthy."""

EMPTY = {"streams": 0.0, "history_messages": 0.0, "history_bytes": 0.0, "dedup_keys": 0.0}


class NatsBackend:
    """Implements `ports.Backend`."""

    def __init__(
        self,
        address: NatsAddress,
        node: NodeName,
        rulebook: Rulebook,
        clock: Clock,
        limits: StoreLimits = STORE_LIMITS,
        options: NatsOptions = NatsOptions(),  # noqa: B008 - frozen
    ) -> None:
        name, recorder = node
        self.link = link = options.link_type(address, f"ropewalk {name}", options.timeout)
        self._rulebook = rulebook
        self._clock = clock
        self._limits = limits
        self._options = options
        self._shards: list[JetShard] = []
        self._lanes: list[Lane] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._counts = dict(EMPTY)
        self._counted = -options.count_seconds
        self._reason = "not connected to NATS yet"
        self._table = Table(link, options.prefix, options.replicas, {"rw-shards": str(options.shards)})
        self._orders = NatsOrders(self._table, name, self._carry_out)
        self.feed = NatsFeed(link, self._shard_for, clock, self._orders.keep)
        self._appends = Appends(link, self._lane_for, self.feed.pass_on)
        self.streams = NatsStreams(lambda: self._shards, self._shard_for, self._appends, rulebook, clock, self._idle_ttl)
        self.sessions = NatsSessions(self._table, name, clock, limits, self._carry_out)
        self.presence = NatsPresence(self._table, name, clock, limits, self._deliver_presence)
        self.leases = NatsLeases(self._table, name, clock, self.sessions, self.presence)
        self.record_queue = NatsRecordQueue(link, self._table, options, recorder, clock, lambda: self._shards)
        self._peer_tips = PeerShardTips(link, name, self.leases)
        self._readers = {
            "s": self.sessions.copy.apply,
            "r": self.sessions.copy.apply_revoked,
            "o": self.sessions.copy.apply_order,
            "m": self.presence.apply,
            "l": self.leases.apply,
            "c": self._orders.apply,
            "q": self.record_queue.apply,
        }
        self._table.apply, self._table.reset = self._apply, self._reset
        link.disconnected, link.reconnected, link.overrun = self._on_disconnected, self._on_reconnected, self._on_overrun

    # --- start and stop -----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Returns even if NATS does not answer yet."""
        opening = self._spawn(self._open())
        await asyncio.wait([opening], timeout=CONNECT_SECONDS)
        if self.link.connected:
            await asyncio.wait([opening], timeout=START_SECONDS - CONNECT_SECONDS)
        if not opening.done():
            logger.error("serving without NATS until it answers", extra={"reason": self.health()})

    async def _open(self) -> None:
        await self.link.open()
        self._reason = "JetStream does not answer"
        self._table.start()
        await self._table.until_ready()
        options = self._options
        count = int(self._table.metadata.get("rw-shards", options.shards))
        if count != options.shards:
            logger.warning("NATS has a different number of shards; the configured number is ignored", extra={"shards": count})
        shards = [
            JetShard(self.link, ShardNames(options.prefix, k), options.replicas, self._max_runs, self._peer_tips.ask)
            for k in range(count)
        ]
        self._lanes = [
            Lane(shard, self._clock, self._limits.dedup_ttl, self._idle_ttl, options.retry_seconds) for shard in shards
        ]
        self._shards = shards
        await self._open_shards()
        self._reason = ""
        logger.info("streams, sessions and presence are kept by NATS", extra={"shards": count, "replicas": options.replicas})

    async def _open_shards(self) -> None:
        while True:
            try:
                await asyncio.gather(*(shard.verify() for shard in self._shards))
                await self._listen()
                break
            except Unavailable as error:
                logger.debug("a shard is not available yet", extra={"reason": str(error)})
                self._reason = str(error)
                await asyncio.sleep(RETRY_SECONDS)

    async def _listen(self) -> None:
        """Subscribe to leader elections, stream deletions and requests of other nodes."""
        ours = f".{self._options.prefix.upper()}_"

        async def elected(message: Msg) -> None:
            if ours in message.subject:
                self._invalidate()

        async def deleted(message: Msg) -> None:
            if message.subject.endswith(f".{self._table.jet}"):
                self._table.mark_deleted()
            if ours in message.subject:
                self._table.resubscribe()
                self._spawn(self._restore_deleted())

        await self.link.subscribe("$JS.EVENT.ADVISORY.STREAM.LEADER_ELECTED.*", elected)
        await self.link.subscribe("$JS.EVENT.ADVISORY.STREAM.DELETED.*", deleted)
        for shard in self._shards:
            await self._peer_tips.answer(shard)

    async def _restore_deleted(self) -> None:
        """Create deleted JetStream streams again. The node is unhealthy until then. The table creates its own."""
        wanted = [self._table.jet, *(shard.jet for shard in self._shards)]
        if self.record_queue.in_use:
            wanted.append(self.record_queue.jet)
        try:
            found = await asyncio.gather(*(jets.info(self.link, jet) for jet in wanted))
        except Unavailable:
            return  # the next sweep tries again
        missing = [jet for jet, info in zip(wanted, found, strict=True) if info is None]
        if self._table.jet in missing:
            self._table.mark_deleted()
            missing.remove(self._table.jet)
        if not missing or self._reason:
            return
        self._reason = f"JetStream has lost {' '.join(missing)}"
        logger.error("JetStream streams were deleted; making them again", extra={"jetstreams": " ".join(missing)})
        self._invalidate()
        while self._reason:
            try:
                await asyncio.gather(*(shard.verify() for shard in self._shards))
                await self.record_queue.restore()
                self._reason = ""
            except Unavailable as error:
                self._reason = str(error)
                await asyncio.sleep(RETRY_SECONDS)

    async def stop(self) -> None:
        await asyncio.gather(*(lane.drain() for lane in self._lanes))
        await self.feed.stop()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._table.stop()
        await self.link.close()

    # --- upkeep -------------------------------------------------------------------------------------------------------

    def health(self) -> str:
        if not self.link.connected:
            return self.link.problem or "NATS does not answer"
        return self._table.trouble or self._reason or self.link.problem

    async def sweep(self) -> None:
        self.sessions.copy.forget_old()
        if not self._table.ready:
            return
        await self.leases.sweep()
        now = asyncio.get_running_loop().time()
        if now - self._counted >= self._options.count_seconds and self._shards:
            self._counted = now
            await self._restore_deleted()
            self._counts = await count_streams(self.streams, self._shards, self._clock, self._limits.dedup_limit)

    def reload_rules(self) -> None:
        """Reads use the rulebook directly. The limits of the JetStream streams are updated before their next use."""
        for shard in self._shards:
            shard.invalidate()

    def gauges(self) -> dict[str, float]:
        """The stream counts are from the last sweep that counted, some seconds ago."""
        return {**self._counts, **self.sessions.copy.gauges(), "presence_members": self.presence.member_count}

    def jet_name(self, stream: str) -> str:
        """The name of the JetStream stream that stores a stream. Raises `Unavailable`."""
        return self._shard_for(stream).jet

    # --- callbacks of the parts ---------------------------------------------------------------------------------------

    def _shard_for(self, stream: str) -> JetShard:
        return self._lane_for(stream).shard

    def _lane_for(self, stream: str) -> Lane:
        if not self._shards:
            raise Unavailable(self._reason)
        return self._lanes[locate_shard(stream, len(self._lanes))]

    def _idle_ttl(self, stream: str) -> float:
        return self._limits.idle_ttl(self._rulebook.of(stream).history_ttl)

    def _max_runs(self) -> int:
        """One more than the longest history: the time of the run before it is that of the newest trimmed message."""
        return self._rulebook.longest_history() + 1

    def _apply(self, applied: Applied) -> None:
        self._readers[applied.key[0]](applied)

    def _reset(self) -> None:
        for part in (self.sessions, self.presence, self.leases, self.record_queue):
            part.clear()

    def _deliver_presence(self, events: Sequence[PresenceEvent]) -> None:
        now = self._clock()
        self.feed.deliver_local([build_transient(presence_publication(event), now) for event in events])

    def _carry_out(self, order: RemoteDisconnect | SessionTaken) -> None:
        self._spawn(self.feed.carry_out(order))

    async def _on_disconnected(self) -> None:
        for shard in self._shards:
            shard.invalidate()

    async def _on_reconnected(self) -> None:
        self._invalidate()
        self._table.resubscribe()

    async def _on_overrun(self) -> None:
        self.feed.report_missed()
        self._table.resubscribe()

    def _invalidate(self) -> None:
        for shard in self._shards:
            shard.invalidate()
        self.feed.report_missed()

    def _spawn(self, work: "asyncio._CoroutineLike[None]") -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a task of the NATS backend failed", exc_info=error)
