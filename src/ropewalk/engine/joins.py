"""Atomic join: a snapshot of history, then live messages strictly above it. The order on the wire is confirmation, history
items, `confirm_history`, live.

If the store answers at once, the whole join is one step of the event loop. Otherwise messages that arrive meanwhile are
buffered and sent above the snapshot's tip. Either way there is no duplicate, no hole and no inversion.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from itertools import islice
from sys import maxsize
from typing import TypeVar

from msgspec.structs import replace

from ropewalk.core.backoff import Backoff
from ropewalk.core.delivered import Delivered
from ropewalk.engine.audience import JoinBuffer
from ropewalk.engine.context import EngineContext
from ropewalk.engine.feed import FeedReader
from ropewalk.engine.hub import Hub
from ropewalk.engine.link import Link
from ropewalk.engine.replay import HistoryAnswer, Reading, Replayer, RequestedHistory
from ropewalk.engine.subscription import Steps, Subscription
from ropewalk.engine.waiting_history import WaitingHistory
from ropewalk.model.errors import Unavailable
from ropewalk.model.history import MAX_ANSWER_BYTES, Gap, GapReason, HistoryPage, HistoryRequest, Replay, Tip
from ropewalk.model.messages import Deliverable, Position
from ropewalk.ports import StreamStore

logger = logging.getLogger("ropewalk.engine")

ATTEMPTS = 6
BETWEEN_ATTEMPTS = Backoff(0.1, 2.0)
"""About five seconds of retries before the client gets an error."""

DROP_SLICE = 256
"""Subscriptions dropped in one turn of the event loop: less than a millisecond of work."""

T = TypeVar("T")


class Joiner:
    """Joins subscriptions to their streams and answers their history requests."""

    def __init__(self, context: EngineContext, hub: Hub, feed: FeedReader, store: StreamStore, pending: WaitingHistory) -> None:
        self._hub = hub
        self._feed = feed
        self._store = store
        self._stats = context.stats
        self._chance = context.chance
        self._tasks = context.tasks
        self._leaving: deque[tuple[Link, Iterator[Subscription]]] = deque()
        self._waiting = pending
        self._archived = context.limits.archive_replay
        self._replayer = Replayer(context.stats, pending)

    async def join(
        self,
        link: Link,
        subscription: Subscription,
        request: HistoryRequest | None,
        confirm: bool,
        following: Sequence[bytes] = (),
    ) -> None:
        """Go live, after sending the requested history. A failing store is retried until it answers, because clients treat a
        rejection as final. Raises `Unavailable` only if the client is gone.

        Args:
            confirm: send the confirmation of a subscribe first.
            following: frames of the application, sent right after the confirmation.
        """
        subscription.claimed = True
        self._release(subscription)
        streams, identifier = subscription.granted.streams, subscription.identifier
        collected = [self._hub.collect(stream, link.limit) for stream in streams]
        try:
            readings = await self._read_first(link, streams, request, forever=True)
            tips = _start_tips(link, [reading.answer for reading in readings], request)
            first = link.codec.confirm_subscription(identifier, tips) if confirm else b""
            if following:
                first = b"".join([first, *following])
            if request is None or link.codec.one_way:  # one-way codecs confirm before the history
                link.answer(first)
                first = b""
            if request is not None:
                if link.codec.one_way:
                    with self._waiting.holding(link, sum(reading.size for reading in readings)):
                        await link.wait_ready()
                history = self._history(link, identifier, request, first)
                await self._send(link, history, request, readings, lambda reading: reading.pieces, forever=True)
                history.end(_tips(link, [reading.answer for reading in readings]))
            joining = list(map(_JoiningStream, readings, collected))
            if not self._feed.exact or not _are_empty(collected):
                await self._catch_up(link, identifier, joining)
            if link.open:
                self._go_live(link, subscription, [each.delivered for each in joining])
        finally:
            for stream, buffer in zip(streams, collected, strict=True):
                self._hub.release(stream, buffer)

    async def extend(self, link: Link, subscription: Subscription, streams: Sequence[str]) -> None:
        """Add streams to a subscription: live from now on, or, if it is held, when it claims its history."""
        new = [stream for stream in dict.fromkeys(streams) if stream not in subscription.granted.streams]
        if subscription.held:
            subscription.add_streams(new, (), ())
            self.hold(link, [subscription])
            return
        collected = [self._hub.collect(stream, link.limit) for stream in new]
        try:
            readings = await self._read_first(link, new, None, forever=True)
            joining = list(map(_JoiningStream, readings, collected))
            await self._catch_up(link, subscription.identifier, joining)
            groups = [self._hub.join(stream, subscription.identifier, link.codec.messages, link) for stream in new if link.open]
            subscription.add_streams(new, [each.delivered for each in joining], groups)
        finally:
            for stream, buffer in zip(new, collected, strict=True):
                self._hub.release(stream, buffer)

    def cut(self, link: Link, subscription: Subscription, streams: Collection[str]) -> None:
        """Remove streams from a subscription."""
        for group in subscription.remove_streams(streams):
            self._hub.leave(group, link)

    async def replay(self, link: Link, subscription: Subscription, request: HistoryRequest) -> None:
        """Answer a history request of a live subscription with the messages that this connection was not sent. A failing store
        is retried until it answers if the client cannot repeat its request."""
        await link.wait_ready()
        history = self._history(link, subscription.identifier, request)
        forever = link.codec.one_way
        try:
            readings = await self._read_first(link, subscription.granted.streams, request, forever)
            await self._send(link, history, request, readings, lambda reading: reading.take_unsent(subscription), forever)
        except Unavailable:
            history.give_up()
        else:
            history.end()

    def _history(self, link: Link, identifier: str, request: HistoryRequest, first: bytes = b"") -> RequestedHistory:
        return RequestedHistory(self._replayer, self._stats, link, identifier, request, first)

    async def _send(
        self,
        link: Link,
        history: RequestedHistory,
        request: HistoryRequest,
        readings: Sequence[Reading],
        part: Callable[[Reading], Steps],
        forever: bool,
    ) -> None:
        """Send the first pages, then the further pages of each stream. A page is read when the client has received the one
        before. Raises `Unavailable`."""
        await history.add([part(reading) for reading in readings if not reading.unread])
        if unfinished := [reading for reading in readings if reading.more]:
            for reading in readings:
                reading.release()
        for reading in unfinished:
            while reading.more and link.open:
                await self._read_on(link, request, reading, forever)
                await history.add([part(reading)])
                reading.release()

    async def _read_on(self, link: Link, request: HistoryRequest, reading: Reading, forever: bool) -> None:
        async def ask(failures: int) -> HistoryAnswer:
            if reading.unread:
                answer = await self._ask(reading.stream, request)
            else:
                answer = await self._store.replay(reading.stream, reading.reached)
            if not self._feed.exact:
                self._feed.check(answer, reading.tip, failures)
            return answer

        reading.take(await self._persist(link, self._with_room(ask, 1), forever))

    # --- restored subscriptions that have not asked for their history yet -----------------------------------------------

    def hold(self, link: Link, subscriptions: Collection[Subscription]) -> None:
        """Buffer the messages of their streams from now on, until they claim their history or `abandon` sends the buffers.
        Together the buffers may hold as much as the link's outbox."""
        streams = sum(len(subscription.granted.streams) for subscription in subscriptions)
        for subscription in subscriptions if link.open else ():
            buffers = subscription.buffers = subscription.buffers or {}
            for stream in subscription.granted.streams:
                if stream not in buffers:
                    buffers[stream] = self._hub.collect(stream, link.limit // streams)

    def drop(self, link: Link, subscription: Subscription) -> None:
        """Stop all deliveries of a subscription."""
        for group in subscription.groups:
            self._hub.leave(group, link)
        subscription.groups = ()
        self._release(subscription)

    def drop_all(self, link: Link, subscriptions: Collection[Subscription]) -> None:
        """Drop all subscriptions of a link that ends: now if they are few, otherwise over several turns of the event loop."""
        if len(subscriptions) > DROP_SLICE:
            self._hub.silence(link.groups, link)
            self._leaving.append((link, iter(tuple(subscriptions))))
            if len(self._leaving) == 1:
                self._tasks.start(self._drop_in_slices())
            return
        for subscription in subscriptions:
            self.drop(link, subscription)

    async def _drop_in_slices(self) -> None:
        """Drop one slice per turn of the event loop, regardless of how many links end."""
        while self._leaving:
            link, subscriptions = self._leaving[0]
            dropped = list(islice(subscriptions, DROP_SLICE))
            for subscription in dropped:
                self.drop(link, subscription)
            if not dropped:
                self._leaving.popleft()
            await asyncio.sleep(0)

    def _release(self, subscription: Subscription) -> None:
        buffers, subscription.buffers = subscription.buffers, None
        for stream, buffer in (buffers or {}).items():
            self._hub.release(stream, buffer)

    async def abandon(self, link: Link, subscription: Subscription) -> None:
        """The resume timeout ended: deliver the buffered messages, report the possible gap before them, and go live."""
        streams: tuple[str, ...] = ()
        pages: list[HistoryPage | None] = []
        while streams != subscription.granted.streams:  # an action may have changed them during the read
            streams = subscription.granted.streams
            pages = [await self._page(link, stream) for stream in streams]
        if not link.open or subscription.claimed:
            return
        subscription.claimed = True
        buffers = [(subscription.buffers or {})[stream] for stream in streams]
        gaps = [_unclaimed_gap(stream, page, buffer) for stream, page, buffer in zip(streams, pages, buffers, strict=True)]
        self._replayer.send_at_once(link, subscription.identifier, [item for buffer in buffers for item in buffer.items])
        self._replayer.reject(link, subscription.identifier, gaps)
        self._go_live(link, subscription, [_delivered_from(gap, buffer) for gap, buffer in zip(gaps, buffers, strict=True)])
        self._release(subscription)

    async def _read_first(
        self, link: Link, streams: Sequence[str], request: HistoryRequest | None, forever: bool = False
    ) -> list[Reading]:
        """Read the tips of these streams, and the first pages until they hold `MAX_ANSWER_BYTES` together. Raises
        `Unavailable`."""
        archived = maxsize if link.codec.one_way else self._archived

        async def ask(failures: int) -> list[Reading]:
            if self._feed.exact:
                return await read()
            delivered = await self._feed.follow(streams)
            readings = await read()
            for reading, before in zip(readings, delivered, strict=True):
                self._feed.check(reading.answer, before, failures)
            return readings

        async def read() -> list[Reading]:
            readings: list[Reading] = []
            size = 0
            for stream in streams:
                if readings:
                    size += readings[-1].size
                unread = size >= MAX_ANSWER_BYTES
                answer = await self._ask(stream, None if unread else request)
                readings.append(Reading(answer, archived, unread))
            return readings

        # All but the last page hold less than one answer.
        attempt = ask if request is None else self._with_room(ask, min(2, len(streams)))
        return await self._persist(link, attempt, forever)

    def _with_room(self, ask: Callable[[int], Awaitable[T]], answers: int) -> Callable[[int], Awaitable[T]]:
        """Each attempt waits for room for so many answers. The pause before the next one takes none."""
        return lambda failures: self._waiting.read(lambda: ask(failures), answers * MAX_ANSWER_BYTES)

    async def _persist(self, link: Link, ask: Callable[[int], Awaitable[T]], forever: bool) -> T:
        """Retry a failing store up to `ATTEMPTS` times. With `forever`, retry as long as the client is connected; a half-closed
        connection does not show that, so `ATTEMPTS` applies to it too. Raises `Unavailable`."""
        failures = 0
        while True:
            try:
                return await ask(failures)
            except Unavailable as error:
                failures += 1
                if not link.open or (failures >= ATTEMPTS and (link.hung_up or not forever)):
                    raise
                logger.debug("store unavailable, retrying", extra={"reason": str(error), "failures": failures})
                await asyncio.sleep(BETWEEN_ATTEMPTS.delay(failures, self._chance))

    def _ask(self, stream: str, request: HistoryRequest | None) -> Awaitable[HistoryAnswer]:
        if request is not None:
            if position := request.streams.get(stream):
                return self._store.replay(stream, position)
            if request.since is not None:
                return self._store.since(stream, request.since)
        return self._ask_tip(stream)

    async def _ask_tip(self, stream: str) -> HistoryAnswer:
        tip = await self._store.tip(stream)
        return Replay(stream, tip.epoch, tip.offset)

    async def _page(self, link: Link, stream: str) -> HistoryPage | None:
        """The stream's tip and oldest message, once its other listeners have reached that tip. None if the client is gone."""
        failures = 0
        while link.open:
            try:
                page = await self._store.page(stream, 0, 1)
            except Unavailable:
                failures += 1
                await asyncio.sleep(BETWEEN_ATTEMPTS.delay(failures, self._chance))
                continue
            if page is not None and not self._feed.exact:
                await self._feed.reach(Replay(stream, page.epoch, page.tip))
            return page
        return None

    async def _catch_up(self, link: Link, identifier: str, joining: Sequence["_JoiningStream"]) -> None:
        """Send the messages buffered during the join. More may arrive while a slow client receives them. The last round finds
        the buffers empty, and the caller goes live in the same step of the event loop."""
        if not self._feed.exact:
            for each in joining:
                await self._feed.reach(each.answer)
        while late := [item for each in joining for item in each.take()]:
            await self._replayer.send(link, identifier, late)
        if any(each.buffer.full and not link.may_skip(each.stream) for each in joining):
            link.overflow()
            return
        gaps = [gap for each in joining for gap in each.take_dropped(link.codec.reports_positions)]
        self._replayer.send_at_once(link, identifier, gaps)

    def _go_live(self, link: Link, subscription: Subscription, delivered: Sequence[Delivered]) -> None:
        subscription.delivered = tuple(delivered)
        codec, streams = link.codec.messages, subscription.granted.streams
        subscription.groups = tuple(self._hub.join(stream, subscription.identifier, codec, link) for stream in streams)


class _JoiningStream:
    """One stream of a join: selects the buffered messages above the snapshot.

    `delivered` includes the messages that `take` has returned.
    """

    __slots__ = ("_reached", "answer", "buffer", "delivered", "stream")

    def __init__(self, reading: Reading, buffer: JoinBuffer) -> None:
        self.stream = reading.stream
        self.answer = reading.answer
        self.buffer = buffer
        self._reached = reading.tip
        self.delivered = reading.delivered

    def take(self) -> list[Deliverable | Gap]:
        """Buffered messages above the snapshot, and those without a position. If the snapshot's epoch began during the join,
        messages before that epoch are skipped."""
        items = self.buffer.take()
        epoch = self._reached.epoch
        begin = next((index for index, item in enumerate(items) if epoch and item.epoch == epoch), 0)
        following = [self._advance(item) for index, item in enumerate(items) if index >= begin or not item.epoch]
        return [item for item in following if item is not None]

    def _advance(self, item: Deliverable | Gap) -> Deliverable | Gap | None:
        """Advance to the end of an item. Returns what to send to the client, or None."""
        known, end = self._reached, item.upto if isinstance(item, Gap) else item
        same_epoch = end.epoch == known.epoch
        if not end.epoch:
            return item
        if same_epoch and end.offset <= known.offset:
            return None
        if isinstance(item, Gap):
            self.delivered = self.delivered.remove(known, item.upto)
            if same_epoch and item.reason is GapReason.EPOCH_CHANGED:  # the snapshot is of the new epoch
                item = replace(item, reason=GapReason.TRIMMED)
        elif not same_epoch and end.offset > 1:  # no gap announced this epoch: a late message of a lost one
            return None
        self._reached = Position(end.epoch, end.offset)
        return item if known.epoch or end.offset else None  # a client without a position misses nothing at a new epoch

    def take_dropped(self, unplaced: bool) -> list[Deliverable | Gap]:
        """A gap for the messages that did not fit into the buffer, if any. `unplaced`: even if none of them has a position."""
        last = self.buffer.last
        if not self.buffer.full or last is None:
            return [Gap(self.stream, GapReason.DROPPED, "", 1, 0)] if self.buffer.skipped and unplaced else []
        gap = self._advance(Gap(self.stream, GapReason.DROPPED, last.epoch, last.offset + 1, last.offset))
        return [] if gap is None else [gap]


def _are_empty(collected: Sequence[JoinBuffer]) -> bool:
    return not any(buffer.items or buffer.full for buffer in collected)


def _tips(link: Link, answers: Sequence[HistoryAnswer]) -> Sequence[Tip]:
    if not link.codec.shows_tips:
        return ()
    # After a gap without an epoch the client keeps its position.
    with_tip = [answer for answer in answers if answer.epoch or isinstance(answer, Replay)]
    return [(answer.stream, Position(answer.epoch, answer.tip)) for answer in with_tip]


def _start_tips(link: Link, answers: Sequence[HistoryAnswer], request: HistoryRequest | None) -> Sequence[Tip]:
    """Tips of the streams whose history was not requested: live delivery starts there. All tips if the codec confirms with
    them."""
    tips = _tips(link, answers)
    if request is None or not tips or link.codec.confirms_with_tips:
        return tips
    return () if request.since is not None else [tip for tip in tips if tip[0] not in request.streams]


def _unclaimed_gap(stream: str, page: HistoryPage | None, buffer: JoinBuffer) -> Gap:
    """The gap before an unclaimed subscription's messages, up to the tip of the page, or of the buffer if that is newer."""
    epoch, oldest, tip = ("", 1, 0) if page is None else (page.epoch, page.oldest, page.tip)
    if (last := buffer.last) is not None:
        oldest = oldest if last.epoch == epoch else 1
        epoch, tip = last.epoch, last.offset
    return Gap(stream, GapReason.UNCLAIMED, epoch, oldest, tip)


def _delivered_from(gap: Gap, buffer: JoinBuffer) -> Delivered:
    """What an unclaimed subscription was sent: the buffered messages of the gap's epoch, without the gaps among them."""
    items = [item for item in buffer.items if item.epoch == gap.epoch and (isinstance(item, Gap) or item.offset)]
    first = next((item.offset for item in items if not isinstance(item, Gap)), gap.tip + 1)
    sent, reached = Delivered(gap.epoch, first), Position(gap.epoch, 0)
    for item in items:
        if isinstance(item, Gap):
            sent = sent.remove(reached, item.upto)
        else:
            reached = Position(item.epoch, item.offset)
    return sent
