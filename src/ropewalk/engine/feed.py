"""Passes messages from the feed to the hub, through the cursor of each stream.

Invariant: the listeners of a stream get each offset once and in order, whatever the feed repeats, loses or delays. What was
delivered is dropped. What is missing is read from the store first, and what the store has lost too is reported as a gap.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Container, Iterable, Sequence

from ropewalk.core.backoff import Backoff
from ropewalk.core.cursor import Step
from ropewalk.engine.broker import Broker
from ropewalk.engine.context import EngineContext
from ropewalk.engine.hub import Audience, Backlog, Hub
from ropewalk.engine.prefixes import Prefixes
from ropewalk.model.errors import Unavailable
from ropewalk.model.history import Gap, GapReason, Replay, last_offset, split_at_gaps
from ropewalk.model.messages import Deliverable, Position, Registered
from ropewalk.ports import Feed, StreamStore

logger = logging.getLogger("ropewalk.feed")

DOUBTED_ATTEMPTS = 3
"""Retries when the store has no record of a stream we already delivered from."""

WAITING_BYTES = 1024 * 1024
"""Of messages that wait for one stream to be in step again. Past that they are dropped, and read from the store later."""

BETWEEN_READS = Backoff(0.05, 2.0)

FOLLOW_SECONDS = 2.0
"""For how long a join waits for its streams to be in step before it counts as failed and is tried again."""

LINGER_SECONDS = 5.0
"""For how long a stream is listened to after its last listener has left: pages that are reloaded come back at once."""

COMPARED_AT_ONCE = 200
"""Streams whose tips are compared with the store in one upkeep, so that a lost message of a quiet stream is found too."""


def _ignore(streams: Container[str]) -> None:
    """The streams that other nodes listen to are not known here."""


class FeedReader:
    """Between a `Feed` and the hub. It also tells the feed which streams have an audience here.

    With an `exact` feed everybody is always in step: there is nothing to `follow` or to `reach`.
    """

    def __init__(
        self,
        context: EngineContext,
        feed: Feed,
        store: StreamStore,
        broker: Broker,
        stream_key: Callable[[str], bytes] = str.encode,
    ) -> None:
        self._feed = feed
        self._store = store
        self._tasks = context.tasks
        self._stats = context.stats
        self._clock = context.clock
        self._chance = context.chance
        self._is_ephemeral = broker.is_ephemeral
        self._lingering: dict[str, float] = {}
        self._to_compare: list[str] = []  # streams whose tips are still to be compared in this round
        self._doubted: set[str] = set()  # streams to be compared now
        self.exact = feed.exact
        self.hub = self._hub = Hub(context.stats, context.clock, None if feed.exact else self)
        set_listened = broker.set_listened_streams if feed.exact else _ignore
        set_listened(self.hub.listened_streams)
        self.prefixes = self._prefixes = Prefixes(feed, self.hub, stream_key, set_listened)
        self._by_prefix = self.prefixes.by_length

    def deliver(self, messages: Sequence[Deliverable]) -> None:
        """What the feed calls. One message that cannot be delivered costs nobody the others."""
        if self._by_prefix:
            self._prefixes.deliver(messages)
        audiences, deliver, keep_order = self._hub.audiences, self._hub.deliver, self._hub.keep_order
        for message in messages:
            audience = audiences.get(message.stream)
            if audience is None:
                continue
            try:
                if audience.waiting is not None:
                    audience.waiting.add(message)
                elif not message.offset or (step := audience.cursor.take(message.epoch, message.offset)) is Step.NEXT:
                    # Streams with the same partition key are in one order.
                    if message.ordered or (message.fields is not None and message.fields.partition_key):
                        keep_order(message.stream)
                    deliver(audience, message)
                elif step is not Step.OLD:
                    self._out_of_step(audience, message)
            except Exception:
                logger.exception("a message cannot be delivered", extra={"stream": message.stream})

    def _out_of_step(self, audience: Audience, message: Deliverable) -> None:
        if self._feed.exact:
            # It lacks nothing: the first message after somebody joined tells where the stream is, or that it began anew.
            audience.cursor.move(message.epoch, message.offset)
            if message.ordered or (message.fields is not None and message.fields.partition_key):
                self._hub.keep_order(message.stream)
            self._hub.deliver(audience, message)
        else:
            self._fall_behind(audience).add(message)

    # --- back into step -----------------------------------------------------------------------------------------------

    def _fall_behind(self, audience: Audience) -> Backlog:
        """The stream waits until a task has read what is missing."""
        self._stats.feed_fills += 1
        backlog = audience.waiting = Backlog(WAITING_BYTES)
        self._tasks.spawn(self._catch_up(audience, backlog))
        return backlog

    async def _catch_up(self, audience: Audience, backlog: Backlog, listened: bool = True) -> None:
        """Read and deliver until nothing is missing, or nobody listens any more."""
        failures = 0
        while self._hub.audiences.get(audience.stream) is audience:
            try:
                in_step = await self._read_on(audience, backlog) if listened else await self._begin(audience)
            except Unavailable as error:
                failures += 1
                # The health page says that the store is down; a line here would come once for each stream.
                logger.debug("cannot read a stream", extra={"stream": audience.stream, "reason": str(error)})
                await asyncio.sleep(BETWEEN_READS.delay(failures, self._chance))
                continue
            failures, listened = 0, True
            if in_step and not self._left_after(audience, backlog) and not backlog.overflowed:
                break
        audience.waiting = None
        if not backlog.ready.done():
            backlog.ready.set_result(None)

    async def _begin(self, audience: Audience) -> bool:
        """Everything registered from now on is heard of, and what was registered before is history."""
        await self._feed.listen(audience.stream)
        tip = await self._store.tip(audience.stream)
        audience.cursor.move(tip.epoch, tip.offset)
        return True

    async def _read_on(self, audience: Audience, backlog: Backlog) -> bool:
        """Deliver what the store has above the cursor. False where there is more of it."""
        backlog.overflowed = False
        before = audience.cursor.position
        answer = await self._store.replay(audience.stream, before)
        if answer.epoch == before.epoch:
            audience.cursor.doubted = False
        self._give(audience, backlog, answer)
        if last_offset(answer) < answer.tip:
            return False
        if audience.cursor.position == before and (left := self._left_after(audience, backlog)):
            self._drop_stray(audience, backlog, left[0])
        return True

    def _left_after(self, audience: Audience, backlog: Backlog) -> list[Deliverable]:
        """Deliver what of the backlog follows the cursor; what is left begins with a message that does not."""
        backlog.messages[:0] = left = self._give_backlog(audience, backlog.take())
        return left

    def _drop_stray(self, audience: Audience, backlog: Backlog, stray: Deliverable) -> None:
        """A read sees everything that the feed brought before it. So this message is of an epoch that was over before anybody
        listened here, or the store has lost it."""
        logger.warning("a message is not in the store", extra={"stream": audience.stream, "offset": stray.offset})
        backlog.messages.remove(stray)

    def _give(self, audience: Audience, backlog: Backlog, answer: Replay | Gap) -> None:
        """Deliver an answer of the store, which begins right behind the cursor, and say what is missing in it. What the feed
        brought of it is there even where the store keeps no history."""
        cursor, epoch, tip, upto = audience.cursor, answer.epoch, answer.tip, last_offset(answer)
        began_anew = bool(cursor.epoch) and cursor.epoch != epoch
        found: dict[int, Deliverable] = {
            message.offset: message for piece in split_at_gaps(answer) for message in piece.messages
        }
        for message in backlog.messages:
            if message.epoch == epoch and 0 < message.offset <= upto:
                found.setdefault(message.offset, message)
        offsets = sorted(found)
        if cursor.epoch != epoch:
            after = cursor.position
            if not cursor.move(epoch, 0):
                return
            if began_anew:
                first = offsets[0] if offsets else upto + 1
                self._lose(audience, Gap(audience.stream, GapReason.EPOCH_CHANGED, epoch, first, tip), after)
        for offset in offsets:
            if offset > cursor.offset + 1:
                self._lose(audience, Gap(audience.stream, GapReason.TRIMMED, epoch, offset, tip), cursor.position)
            if cursor.take(epoch, offset) is Step.NEXT:
                self._hub.deliver(audience, found[offset])
        if upto > cursor.offset:
            self._lose(audience, Gap(audience.stream, GapReason.TRIMMED, epoch, upto + 1, tip), cursor.position)

    def _lose(self, audience: Audience, gap: Gap, after: Position) -> None:
        """Continue behind a gap, and report it."""
        audience.cursor.move(gap.epoch, gap.oldest - 1)
        self._hub.send_gap(audience, gap, after)

    def _give_next(self, audience: Audience, messages: Iterable[Registered]) -> None:
        for message in messages:
            if audience.cursor.take(message.epoch, message.offset) is Step.NEXT:
                self._hub.deliver(audience, message)

    def _give_backlog(self, audience: Audience, messages: list[Deliverable]) -> list[Deliverable]:
        """Deliver what follows; what is left begins with a message that does not."""
        for index, message in enumerate(messages):
            if not message.offset:
                self._hub.deliver(audience, message)
                continue
            match audience.cursor.take(message.epoch, message.offset):
                case Step.NEXT:
                    self._hub.deliver(audience, message)
                case Step.JUMP | Step.NEW_EPOCH:
                    return messages[index:]
        return []

    # --- joins --------------------------------------------------------------------------------------------------------

    async def follow(self, streams: Sequence[str]) -> list[Position]:
        """Until everything that is registered from now on is heard of. Whoever joins collects, so that there is an audience.
        Returns what was delivered of each stream by then. Raises `Unavailable`."""
        try:
            async with asyncio.timeout(FOLLOW_SECONDS):
                for stream in streams:
                    await self._in_step(self._hub.audiences[stream])
        except TimeoutError:
            raise Unavailable("the store or the feed does not answer") from None
        return [self._hub.audiences[stream].cursor.position for stream in streams]

    def check(self, answer: Replay | Gap, delivered: Position, failures: int) -> None:
        """Of several servers of a store, one that was cut off may answer with what it had then: less than what was `delivered`
        before it was asked. One that knows nothing of the stream is believed in the end: it may be lost. Raises
        `Unavailable`."""
        if answer.epoch == delivered.epoch:
            behind = answer.tip < delivered.offset
        elif answer.epoch:
            behind = self._hub.audiences[answer.stream].cursor.is_over(answer.epoch)
        else:
            behind = failures < DOUBTED_ATTEMPTS
        if behind:
            raise Unavailable("the store is behind")

    async def reach(self, answer: Replay | Gap) -> None:
        """Whoever joins has read this from the store. Everybody else on the stream comes as far before the join goes on: then
        what was read comes to nobody twice."""
        audience = self._hub.audiences[answer.stream]
        await self._in_step(audience)
        tip = Position(answer.epoch, answer.tip)
        if not tip.epoch and audience.cursor.epoch:
            # The stream was lost or forgotten. Whoever joins knows nothing of it, so that what is still on its way may not
            # reach them as if they had everything before it.
            audience.cursor.doubted = True
        if not audience.cursor.behind(tip):
            return
        if audience.cursor.epoch == answer.epoch and isinstance(answer, Replay):
            self._give_next(audience, answer.messages)
        if audience.cursor.behind(tip):
            self._fall_behind(audience)
            await self._in_step(audience)
        if audience.cursor.behind(tip):
            # Lost between the two reads. Whoever joins was told of everything up to the tip, so that what is still on its way
            # below it may not reach them.
            audience.cursor.doubted = True

    async def _in_step(self, audience: Audience) -> None:
        while audience.waiting is not None:
            await asyncio.shield(audience.waiting.ready)

    # --- interest -----------------------------------------------------------------------------------------------------

    def first(self, audience: Audience) -> None:
        """Its cursor begins at the tip that the store has once the feed listens."""
        self._lingering.pop(audience.stream, None)
        backlog = audience.waiting = Backlog(WAITING_BYTES)
        self._tasks.spawn(self._catch_up(audience, backlog, listened=False))

    def last(self, audience: Audience) -> None:
        self._lingering[audience.stream] = self._clock() + LINGER_SECONDS

    async def upkeep(self) -> None:
        """Called about once a second."""
        if self._feed.exact:
            return
        now = self._clock()
        for stream in [stream for stream, until in self._lingering.items() if until <= now]:
            del self._lingering[stream]
            self._feed.unlisten(stream)
        if self._feed.reports_losses:
            return
        if not self._to_compare:
            self._to_compare = list(self._hub.audiences)
        for _ in range(min(COMPARED_AT_ONCE, len(self._to_compare))):
            await self._compare(self._to_compare.pop())

    async def _compare(self, stream: str) -> None:
        tip = await self._store.tip(stream)
        audience = self._hub.audiences.get(stream)
        if audience is not None and audience.waiting is None and audience.cursor.behind(tip):
            self._fall_behind(audience)

    def missed(self, streams: Collection[str] | None = None) -> None:
        """The feed may have lost messages of these streams, or of any. Those that are out of step read on in any case. Of
        ephemeral streams nobody can read what is lost, nor know whether anything is: everybody is told that something may be,
        and so is whoever follows streams by prefix, where it may be any."""
        if streams is None:
            self._prefixes.missed()
            streams = list(self._hub.audiences)
        heard = [audience for stream in streams if (audience := self._hub.audiences.get(stream)) is not None]
        for audience in heard:
            if self._is_ephemeral(audience.stream):
                self._hub.send_gap(audience, Gap(audience.stream, GapReason.TRIMMED, "", 1, 0), Position("", 0))
        first = not self._doubted
        self._doubted.update(audience.stream for audience in heard)
        if first and self._doubted:
            self._tasks.spawn(self._compare_doubted())

    async def _compare_doubted(self) -> None:
        failures = 0
        while self._doubted:
            stream = self._doubted.pop()
            try:
                await self._compare(stream)
                failures = 0
            except Unavailable:
                failures += 1
                await asyncio.sleep(BETWEEN_READS.delay(failures, self._chance))
                self._doubted.add(stream)
