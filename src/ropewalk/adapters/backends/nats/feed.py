"""Implements `ports.Feed`: JetStream republishes what it has stored, and nodes subscribe to the streams that they have
listeners for.

Invariant: a message that comes here is stored. One that does not come was sent while a connection was down, a leader changed
or too much came at once, and then readers are told that they may have missed something.
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
from ropewalk.ports import Clock, Deliver, OnDisconnectRequest

logger = logging.getLogger("ropewalk.nats")

MAX_WAITING = 10_000
"""Transient messages that may wait to be sent; those beyond are dropped."""

KeepOrder = Callable[[RemoteDisconnect], Awaitable[None]]


def _nobody(messages: Sequence[Deliverable]) -> None:
    """Before the node has started nobody listens."""


def _nothing() -> None:
    pass


async def _no_one(order: EndRequest) -> int:
    return 0


class NatsFeed:
    exact = False
    reports_losses = False

    def __init__(self, link: NatsLink, shard_of: Callable[[str], JetShard], clock: Clock, keep: KeepOrder) -> None:
        self._link = link
        self._shard_of = shard_of
        self._clock = clock
        self._keep = keep
        self._deliver: Deliver = _nobody
        self._obey: OnDisconnectRequest = _no_one
        self._subscriptions: dict[str, Subscription] = {}
        self._outgoing: list[Registered] = []
        self._sending: asyncio.Task[None] | None = None
        self._missed: Callable[[], None] = _nothing
        self._ending: set[asyncio.Task[None]] = set()

    async def start(self, deliver: Deliver, obey: OnDisconnectRequest, missed: Callable[[], None] = _nothing) -> None:
        self._deliver, self._obey, self._missed = deliver, obey, missed

    async def stop(self) -> None:
        self._deliver, self._obey, self._missed = _nobody, _no_one, _nothing
        for stream in list(self._subscriptions):
            self.unlisten(stream)
        if tasks := [task for task in (*self._ending, self._sending) if task is not None]:
            await asyncio.wait(tasks)

    def health(self) -> str:
        return ""

    # --- what comes ---------------------------------------------------------------------------------------------------

    async def listen(self, stream: str) -> None:
        if stream not in self._subscriptions:
            shard = self._shard_of(stream)
            await shard.verify()

            async def receive(message: Msg) -> None:
                run = runs.decode(message.data)
                if run.id and message.headers:
                    shard.saw(int(message.headers.get("Nats-Sequence", 0)), run.id)
                self._deliver(run.messages())

            subscription = await self._link.subscribe(shard.names.live(stream), receive)
            self.unlisten(stream)  # somebody else may have listened meanwhile
            self._subscriptions[stream] = subscription

    def unlisten(self, stream: str) -> None:
        subscription = self._subscriptions.pop(stream, None)
        if subscription is not None:
            task = asyncio.get_running_loop().create_task(_end(subscription))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    def tell(self, messages: Sequence[Registered]) -> None:
        """Something that the whole cluster hears of in another way, for those who listen here."""
        heard = [message for message in messages if message.stream in self._subscriptions]
        if heard:
            self._deliver(heard)

    async def obey(self, order: EndRequest) -> None:
        """From another node, which ends in the store what is kept there."""
        try:
            await self._obey(order)
        except RopewalkError as error:
            logger.warning("an order was not carried out", extra={"reason": str(error)})

    def doubt(self) -> None:
        """Something may have been missed."""
        self._missed()

    # --- what goes ----------------------------------------------------------------------------------------------------

    def publish(self, messages: Sequence[Registered]) -> None:
        room = MAX_WAITING - len(self._outgoing)
        if room < len(messages):
            logger.warning("transient messages are dropped: too many wait for NATS", extra={"count": len(messages) - room})
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
                for run in _together(waiting, self._link.most_bytes):
                    shard = self._shard_of(run.stream)
                    await self._send_run(shard.names.live_in(shard.generation, run.stream), run)
        except RopewalkError as error:
            logger.debug("transient messages are lost", extra={"reason": str(error)})
        finally:
            self._sending = None

    async def _send_run(self, subject: str, run: runs.Run) -> None:
        try:
            await self._link.send(subject, runs.encode(run))
        except TooLarge as error:  # those after it have nothing to do with it
            logger.warning("a transient message is dropped", extra={"stream": run.stream, "reason": str(error)})

    async def disconnect(self, request: RemoteDisconnect) -> int:
        """Other nodes hear of it before their sessions are taken out of the store: the order says what clients are told."""
        failure: Unavailable | None = None
        try:
            await self._keep(request)
        except Unavailable as error:
            failure = error
        ended = await self._obey(request)
        if failure is not None:
            raise failure
        return ended


def _together(messages: Iterable[Registered], most_bytes: int) -> Iterator[runs.Run]:
    """One run for those of a stream that follow each other, as far as they fit into a message of NATS."""
    for stream, those in groupby(messages, key=lambda message: message.stream):
        some: list[Registered] = []
        size = 0
        for message in those:
            added = len(message.payload) + 4 * (len(message.exclude_socket) + len(message.broadcast_type)) + runs.ITEM_BYTES
            if some and size + added > most_bytes:
                yield runs.transient_run(stream, some)
                some, size = [], 0
            some.append(message)
            size += added
        yield runs.transient_run(stream, some)


async def _end(subscription: Subscription) -> None:
    try:
        await subscription.unsubscribe()
    except Exception as error:  # whatever it is: the connection is gone, and the subscription with it
        logger.debug("cannot unsubscribe", extra={"reason": str(error)})
