"""Atomic join: a snapshot of history, and live strictly above it. Confirmation, items, `confirm_history`, then live.

Where the store answers at once the whole join is one step of the event loop. Where it must wait, what is delivered
meanwhile is collected and handed on above the snapshot's tip: no duplicate, no hole, no inversion either way.
"""

from collections.abc import Collection, Sequence

from ropewalk.core.stats import Stats
from ropewalk.engine.hub import Catch, Hub
from ropewalk.engine.link import Link
from ropewalk.engine.subscription import Subscription
from ropewalk.model.history import Gap, GapReason, HistoryRequest, Replay
from ropewalk.model.messages import Position, Registered
from ropewalk.ports import StreamStore
from ropewalk.protocol.codec import Tip

WRITE_BYTES = 65536

Answer = Replay | Gap


class Joiner:
    """Joins subscriptions to their streams and answers their history requests."""

    def __init__(self, hub: Hub, store: StreamStore, stats: Stats) -> None:
        self._hub = hub
        self._store = store
        self._stats = stats

    async def join(
        self,
        link: Link,
        subscription: Subscription,
        request: HistoryRequest | None,
        confirm: bool,
        following: Sequence[bytes] = (),
    ) -> None:
        """Go live, with history first where it is asked for. `confirm`: this is a subscribe, say so before anything else but
        what the application wants said right after it."""
        subscription.claimed = True
        streams = subscription.granted.streams
        collected = [self._hub.collect(stream, link.limit) for stream in streams]
        try:
            answers = [await self._answer(stream, request) for stream in streams]
            tips = [(answer.stream, Position(answer.epoch, answer.tip)) for answer in answers]
            if confirm:
                link.send(link.codec.about("confirm_subscription", subscription.identifier, _begun(tips, request)))
            for frame in following:
                link.send(frame)
            if request is not None:
                await link.ready()
                answers = [await self._last_page(link, subscription, answer) for answer in answers]
                tips = [(answer.stream, Position(answer.epoch, answer.tip)) for answer in answers]
                await self._send_history(link, subscription, answers, tips)
            # While a slow client takes its history more comes in; the last round finds nothing and is one step with going live.
            while late := _taken(answers, collected):
                await self._send_items(link, subscription, late)
            if any(catch.full for catch in collected):
                link.overflow()
            elif link.open:
                self._go_live(link, subscription, [_floor(answer) for answer in answers])
        finally:
            for stream, catch in zip(streams, collected, strict=True):
                self._hub.release(stream, catch)

    async def extend(self, link: Link, subscription: Subscription, streams: Sequence[str]) -> None:
        """More streams for a subscription: live from now on, or with the others once it has claimed its history."""
        new = [stream for stream in dict.fromkeys(streams) if stream not in subscription.granted.streams]
        if subscription.floors is None:
            subscription.add_streams(new, (), ())
            return
        collected = [self._hub.collect(stream, link.limit) for stream in new]
        try:
            answers = [await self._answer(stream, None) for stream in new]
            while late := _taken(answers, collected):
                await self._send_items(link, subscription, late)
            if any(catch.full for catch in collected):
                link.overflow()
            groups = [self._hub.join(stream, subscription.identifier, link.codec, link) for stream in new if link.open]
            subscription.add_streams(new, [_floor(answer) for answer in answers], groups)
        finally:
            for stream, catch in zip(new, collected, strict=True):
                self._hub.release(stream, catch)

    def cut(self, link: Link, subscription: Subscription, streams: Collection[str]) -> None:
        """Nothing more of these streams for a subscription."""
        for group in subscription.remove_streams(streams):
            self._hub.leave(group, link)

    async def replay(self, link: Link, subscription: Subscription, request: HistoryRequest) -> None:
        """Answer a history request of a subscription that is live already: only what it did not get live."""
        await link.ready()
        found = [await self._answer(stream, request) for stream in subscription.granted.streams]
        answers = [_complete(subscription, index, answer) for index, answer in enumerate(found)]
        await self._send_history(link, subscription, answers)
        for index, answer in enumerate(answers):
            position = request.streams.get(answer.stream)
            if position and isinstance(answer, Replay):
                subscription.lower(index, position)

    async def abandon(self, link: Link, subscription: Subscription) -> None:
        """The resume patience is over: say the gap that may be there, and go live from the tip."""
        streams: tuple[str, ...] = ()
        tips: list[Position] = []
        while streams != subscription.granted.streams:  # an action may have changed them while the store was asked
            streams = subscription.granted.streams
            tips = [await self._store.tip(stream) for stream in streams]
        if not link.open or subscription.claimed:
            return
        gaps = [
            Gap(stream, GapReason.UNCLAIMED, tip.epoch, tip.offset + 1, tip.offset)
            for stream, tip in zip(streams, tips, strict=True)
        ]
        subscription.claimed = True
        self._reject(link, subscription, gaps)
        self._go_live(link, subscription, tips)

    async def _answer(self, stream: str, request: HistoryRequest | None) -> Answer:
        if request is not None:
            if position := request.streams.get(stream):
                return await self._store.replay(stream, position)
            if request.since is not None:
                return await self._store.since(stream, request.since)
        tip = await self._store.tip(stream)
        return Replay(stream, tip.epoch, tip.offset)

    async def _last_page(self, link: Link, subscription: Subscription, answer: Answer) -> Answer:
        """For a client that cannot ask for the rest of a long answer: all pages of it but the last, which is returned."""
        while link.codec.one_way and link.open and isinstance(answer, Gap) and answer.reason is GapReason.PARTIAL:
            await self._send_items(link, subscription, answer.messages)
            self._stats.replayed_messages += len(answer.messages)
            answer = await self._store.replay(answer.stream, Position(answer.epoch, answer.oldest - 1))
        return answer

    async def _send_history(
        self, link: Link, subscription: Subscription, answers: Sequence[Answer], tips: Sequence[Tip] = ()
    ) -> None:
        """What joins up, and then `confirm_history`, or `reject_history` and which streams it is about."""
        items: list[Registered] = []
        gaps: list[Gap] = []
        for index, answer in enumerate(answers):
            items += subscription.owed(index, answer)
            if isinstance(answer, Gap):
                gaps.append(answer)
        await self._send_items(link, subscription, items)
        self._stats.replays += 1
        self._stats.replayed_messages += len(items)
        if gaps:
            self._reject(link, subscription, gaps)
        else:
            link.send(link.codec.about("confirm_history", subscription.identifier, tips))

    def _reject(self, link: Link, subscription: Subscription, gaps: Sequence[Gap]) -> None:
        for gap in gaps:
            self._stats.gaps[gap.reason] += 1
        link.send(link.codec.reject_history(subscription.identifier, gaps))

    async def _send_items(self, link: Link, subscription: Subscription, items: Sequence[Registered]) -> None:
        """In writes of a bounded size, each when the one before is taken: a long history costs time, not memory."""
        head = link.codec.head(subscription.identifier)
        frames: list[bytes] = []
        size = 0
        for item in items:
            if item.exclude_socket in link.names:  # what a client was not meant to hear live it does not hear now either
                continue
            frames.append(link.codec.message(head, item))
            size += len(frames[-1])
            if size >= WRITE_BYTES:
                link.send(b"".join(frames))
                await link.drained()
                frames, size = [], 0
        link.send(b"".join(frames))

    def _go_live(self, link: Link, subscription: Subscription, floors: Sequence[Position]) -> None:
        subscription.floors = tuple(floors)
        subscription.groups = tuple(
            self._hub.join(stream, subscription.identifier, link.codec, link) for stream in subscription.granted.streams
        )


def _taken(answers: Sequence[Answer], collected: Sequence[Catch]) -> list[Registered]:
    """What was collected above the snapshots, taken out of the catches."""
    return [
        message
        for answer, catch in zip(answers, collected, strict=True)
        for message in catch.take()
        if message.epoch != answer.epoch or message.offset > answer.tip
    ]


def _begun(tips: Sequence[Tip], request: HistoryRequest | None) -> Sequence[Tip]:
    """Those of streams that begin at their tip, because no history of them is asked for."""
    if request is None:
        return tips
    return [] if request.since is not None else [tip for tip in tips if tip[0] not in request.streams]


def _complete(subscription: Subscription, index: int, answer: Answer) -> Answer:
    """A bounded answer that reaches up to what was delivered live is all that is owed."""
    match answer:
        case Gap(reason=GapReason.PARTIAL, oldest=following) if subscription.reaches_live(index, answer.epoch, following - 1):
            return Replay(answer.stream, answer.epoch, answer.tip, answer.messages)
        case _:
            return answer


def _floor(answer: Answer) -> Position:
    """The newest offset that neither the history just sent nor live delivery brings."""
    match answer:
        case Replay(messages=(first, *_)):
            return Position(answer.epoch, first.offset - 1)
        case _:
            return Position(answer.epoch, answer.tip)
