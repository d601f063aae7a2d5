"""Implements `ports.Feed`: JetStream republishes stored messages, and nodes subscribe to streams with local listeners.

Invariant: every delivered message with a position is stored. Messages are lost only while a connection is down, a leader
changes or a subscription overflows, and each of these is reported as missed.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from itertools import groupby

from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from ropewalk.adapters.backends.nats import runs
from ropewalk.adapters.backends.nats.link import NatsLink
from ropewalk.adapters.backends.nats.shard import JetShard
from ropewalk.model.errors import RopewalkError, TooLarge, Unavailable
from ropewalk.model.messages import (
    Deliverable,
    Publication,
    Registered,
    RemoteDisconnect,
    TransientRun,
    build_transient,
    expand_runs,
)
from ropewalk.model.sessions import EndRequest
from ropewalk.ports import Clock, Deliver, OnDisconnectRequest, ignore_missed

logger = logging.getLogger("ropewalk.nats")

MAX_WAITING = 10_000
"""Pending transient messages. Further ones are dropped."""

KeepOrder = Callable[[RemoteDisconnect], Awaitable[None]]


def _discard(messages: Sequence[Deliverable]) -> None:
    """Used until the feed is started."""


async def _ignore_request(order: EndRequest) -> int:
    return 0


class NatsFeed:
    exact = False
    reports_losses = False

    def __init__(self, link: NatsLink, shard_for: Callable[[str], JetShard], clock: Clock, keep: KeepOrder) -> None:
        self._link = link
        self._shard_for = shard_for
        self._clock = clock
        self._keep = keep
        self._deliver: Deliver = _discard
        self._on_disconnect: OnDisconnectRequest = _ignore_request
        self._subscriptions: dict[str, Subscription] = {}
        self._outgoing: list[Registered] = []
        self._sending: asyncio.Task[None] | None = None
        self._on_missed: Callable[[], None] = ignore_missed
        self._ending: set[asyncio.Task[None]] = set()

    async def start(
        self, deliver: Deliver, on_disconnect_request: OnDisconnectRequest, on_missed: Callable[[], None] = ignore_missed
    ) -> None:
        self._deliver, self._on_disconnect, self._on_missed = deliver, on_disconnect_request, on_missed

    async def stop(self) -> None:
        self._deliver, self._on_disconnect, self._on_missed = _discard, _ignore_request, ignore_missed
        for stream in list(self._subscriptions):
            self.unlisten(stream)
        if tasks := [task for task in (*self._ending, self._sending) if task is not None]:
            await asyncio.wait(tasks)

    def health(self) -> str:
        return ""

    # --- incoming -----------------------------------------------------------------------------------------------------

    async def listen(self, stream: str) -> None:
        if stream not in self._subscriptions:
            shard = self._shard_for(stream)
            await shard.verify()

            async def receive(message: Msg) -> None:
                run = runs.decode(message.data)
                if run.id and message.headers:
                    shard.saw(int(message.headers.get("Nats-Sequence", 0)), run.id)
                self._deliver(run.messages())

            subscription = await self._link.subscribe(shard.names.live(stream), receive)
            self.unlisten(stream)  # a concurrent call may have subscribed too
            self._subscriptions[stream] = subscription

    def unlisten(self, stream: str) -> None:
        subscription = self._subscriptions.pop(stream, None)
        if subscription is not None:
            task = asyncio.get_running_loop().create_task(_unsubscribe(subscription))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    def deliver_local(self, messages: Sequence[Registered]) -> None:
        """Deliver messages to local listeners only. Every node creates them from its own copy of the records."""
        listened = [message for message in messages if message.stream in self._subscriptions]
        if listened:
            self._deliver(listened)

    async def carry_out(self, order: EndRequest) -> None:
        """Carry out a request from another node. That node updates the store."""
        try:
            await self._on_disconnect(order)
        except RopewalkError as error:
            logger.warning("an order was not carried out", extra={"reason": str(error)})

    def report_missed(self) -> None:
        self._on_missed()

    # --- outgoing -----------------------------------------------------------------------------------------------------

    def publish(self, messages: Sequence[Registered]) -> None:
        room = MAX_WAITING - len(self._outgoing)
        if room < len(messages):
            logger.warning("transient messages are dropped: too many pending", extra={"count": len(messages) - room})
        self._outgoing += messages[:room]
        if self._sending is None and self._outgoing:
            self._sending = asyncio.get_running_loop().create_task(self._send())

    def publish_runs(self, runs: Sequence[TransientRun], confirm: bool = False) -> None:
        self.publish(expand_runs(runs))

    def pass_on(self, publications: Sequence[Publication]) -> None:
        now = self._clock()
        self.publish([build_transient(publication, now) for publication in publications])

    async def _send(self) -> None:
        try:
            while self._outgoing:
                waiting, self._outgoing = self._outgoing, []
                await self._send_waiting(waiting)
        finally:
            self._sending = None

    async def _send_waiting(self, waiting: Sequence[Registered]) -> None:
        try:
            for run in _group_runs(waiting, self._link.max_batch_bytes):
                shard = self._shard_for(run.stream)
                await self._send_run(shard.names.live_in(shard.generation, run.stream), run)
        except RopewalkError as error:
            logger.debug("transient messages are lost", extra={"reason": str(error)})

    async def _send_run(self, subject: str, run: runs.Run) -> None:
        try:
            await self._link.send(subject, runs.encode(run))
        except TooLarge as error:  # the following runs may still fit
            logger.warning("a transient message is dropped", extra={"stream": run.stream, "reason": str(error)})

    async def disconnect(self, request: RemoteDisconnect) -> int:
        """Stores the request before their sessions are removed: it determines what the clients of other nodes receive."""
        failure: Unavailable | None = None
        try:
            await self._keep(request)
        except Unavailable as error:
            failure = error
        ended = await self._on_disconnect(request)
        if failure is not None:
            raise failure
        return ended


def _group_runs(messages: Iterable[Registered], max_bytes: int) -> Iterator[runs.Run]:
    """One run for consecutive messages of a stream, up to the size of a NATS message."""
    for stream, group in groupby(messages, key=lambda message: message.stream):
        some: list[Registered] = []
        size = 0
        for message in group:
            added = len(message.payload) + 4 * (len(message.exclude_socket) + len(message.broadcast_type)) + runs.ITEM_BYTES
            if some and size + added > max_bytes:
                yield runs.transient_run(stream, some)
                some, size = [], 0
            some.append(message)
            size += added
        yield runs.transient_run(stream, some)


async def _unsubscribe(subscription: Subscription) -> None:
    try:
        await subscription.unsubscribe()
    except Exception as error:  # the connection was lost, and the subscription with it
        logger.debug("cannot unsubscribe", extra={"reason": str(error)})
