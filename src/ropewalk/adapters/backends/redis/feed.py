"""The feed of the Redis backend: messages that the scripts publish, and requests to all nodes or to this one."""

import asyncio
import logging
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from msgspec import MsgspecError, Struct
from msgspec.msgpack import Decoder, encode

from ropewalk.adapters.backends.redis.entries import decode_packet, registered
from ropewalk.adapters.backends.redis.sessions import session_taken
from ropewalk.adapters.backends.redis.shard import Shard
from ropewalk.adapters.backends.redis.store import Store
from ropewalk.adapters.backends.redis.subscriber import ShardSubscriber
from ropewalk.model.errors import RopewalkError, Unavailable
from ropewalk.model.messages import Publication, Registered, RemoteDisconnect, TransientRun, expand_runs
from ropewalk.model.sessions import SessionTaken
from ropewalk.ports import Deliver, OnDisconnectRequest, ignore_missed

logger = logging.getLogger("ropewalk.redis")

ORDER_SECONDS = 60
"""How long a request is kept for disconnected nodes."""

MAX_DISCONNECTS = 10_000


class _Order(Struct, frozen=True, array_like=True):
    id: str
    identifier: str
    reconnect: bool


class _Taken(Struct, frozen=True, array_like=True):
    sid: str
    reason: int


_decode_order = Decoder(_Order).decode
_decode_taken = Decoder(_Taken).decode


class RedisFeed:
    """Implements `ports.Feed`."""

    exact = False
    reports_losses = False

    def __init__(self, store: Store, node: str) -> None:
        self._store = store
        self._node = node
        self._deliver: Deliver | None = None
        self._on_disconnect: OnDisconnectRequest | None = None
        self._on_missed: Callable[[], None] = ignore_missed
        self._subscribers: list[ShardSubscriber] = []
        self._streams: dict[bytes, str] = {}  # by channel
        self._orders: OrderedDict[str, None] = OrderedDict()  # ids of requests already carried out
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(
        self, deliver: Deliver, on_disconnect_request: OnDisconnectRequest, on_missed: Callable[[], None] = ignore_missed
    ) -> None:
        self._deliver, self._on_disconnect, self._on_missed = deliver, on_disconnect_request, on_missed
        if self._store.found.is_set():
            await self._open()
        else:
            self._spawn(self._open_when_found())

    async def stop(self) -> None:
        self._deliver = self._on_disconnect = None
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        for subscriber in self._subscribers:
            await subscriber.stop()
        self._subscribers = []

    async def listen(self, stream: str) -> None:
        index = self._store.shard_index(stream)
        if not self._subscribers:
            raise Unavailable("not connected to Redis yet")
        channel = self._store.shards[index].key(f"c:{stream}")
        self._streams[channel] = stream
        await self._subscribers[index].listen(channel)

    def unlisten(self, stream: str) -> None:
        if self._subscribers:
            index = self._store.shard_index(stream)
            channel = self._store.shards[index].key(f"c:{stream}")
            self._streams.pop(channel, None)
            self._subscribers[index].unlisten(channel)

    def publish(self, messages: Sequence[Registered]) -> None:
        for message in messages:
            publication = Publication(
                message.stream, message.payload, message.exclude_socket, message.broadcast_type, transient=True
            )
            try:
                self._store.appenders[self._store.shard_index(message.stream)].append_unconfirmed([publication])
            except Unavailable as error:
                logger.debug("a transient message is lost", extra={"stream": message.stream, "reason": str(error)})

    def publish_runs(self, runs: Sequence[TransientRun], confirm: bool = False) -> None:
        self.publish(expand_runs(runs))

    async def disconnect(self, request: RemoteDisconnect) -> int:
        kept = _Order(secrets.token_urlsafe(9), request.identifier, request.reconnect)
        self._note(kept.id)
        failure: RopewalkError | None = None
        try:
            home = self._store.home
            bounds = (ORDER_SECONDS * 1000, MAX_DISCONNECTS)
            await home.ask("order", [home.key("o")], home.key("orders"), encode(kept), *bounds)
        except Unavailable as error:
            failure = error
        ended = await self._on_disconnect(request) if self._on_disconnect is not None else 0
        if failure is not None:
            raise failure
        return ended

    def health(self) -> str:
        return next((subscriber.trouble for subscriber in self._subscribers if subscriber.trouble), "")

    # --- incoming -----------------------------------------------------------------------------------------------------

    async def _open_when_found(self) -> None:
        await self._store.found.wait()
        await self._open()

    async def _open(self) -> None:
        for order in await self._kept_orders():
            self._note(order.id)  # sent before the start: this process has no sessions to end
        for index, shard in enumerate(self._store.shards):
            always = [shard.key("orders"), shard.key(f"to:{self._node}")] if index == 0 else [shard.key("orders")]
            subscriber = ShardSubscriber(
                self._store.topology.connect(str(index)),
                self._store.context.sharded,
                always,
                partial(self._receive, shard),
                partial(self._on_reconnected, index),
            )
            subscriber.start()
            self._subscribers.append(subscriber)

    def _receive(self, shard: Shard, channel: bytes, data: bytes) -> None:
        stream = self._streams.get(channel)
        try:
            if stream is None:
                self._receive_order(shard, channel, data)
            else:
                self._receive_packet(shard, stream, data)
        except MsgspecError as error:
            logger.error("malformed message on a channel of Ropewalk", extra={"reason": str(error)})

    def _receive_packet(self, shard: Shard, stream: str, data: bytes) -> None:
        packet = decode_packet(data)
        shard.saw(packet.run, packet.generation, packet.counter)
        if self._deliver is not None:
            self._deliver([registered(stream, packet.epoch, entry) for entry in packet.entries])

    def _receive_order(self, shard: Shard, channel: bytes, data: bytes) -> None:
        if channel == shard.key("orders"):
            self._take(_decode_order(data))
        elif channel == shard.key(f"to:{self._node}"):
            taken = _decode_taken(data)
            self._spawn(self._carry_out(session_taken(taken.sid, taken.reason)))

    def _take(self, order: _Order) -> None:
        if order.id not in self._orders:
            self._note(order.id)
            self._spawn(self._carry_out(RemoteDisconnect(order.identifier, order.reconnect)))

    def _note(self, order_id: str) -> None:
        self._orders[order_id] = None
        if len(self._orders) > MAX_DISCONNECTS:
            self._orders.popitem(last=False)

    async def _carry_out(self, order: RemoteDisconnect | SessionTaken) -> None:
        if self._on_disconnect is None:
            return
        try:
            await self._on_disconnect(order)
        except RopewalkError as error:
            logger.warning("an order was not carried out", extra={"reason": str(error)})

    async def _on_reconnected(self, index: int) -> None:
        self._on_missed()
        if index == 0:
            self._spawn(self._catch_up())

    async def _catch_up(self) -> None:
        """Carry out requests sent while this node was disconnected."""
        for order in await self._kept_orders():
            self._take(order)

    async def _kept_orders(self) -> list[_Order]:
        home = self._store.home
        try:
            kept = await home.ask("orders", [home.key("o")], ORDER_SECONDS * 1000)
        except Unavailable as error:
            logger.warning("cannot read kept orders", extra={"reason": str(error)})
            return []
        return [_decode_order(order) for order in kept]

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
