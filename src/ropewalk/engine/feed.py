"""Passes messages from the feed to the hub, through the cursor of each stream.

Invariant: the listeners of a stream get each offset once and in order, even if the feed repeats, loses or delays messages.
Duplicates are dropped. Missing messages are read from the store first, and those that the store has lost are reported as a gap.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Container, Iterable, Sequence

from ropewalk.core.backoff import Backoff
from ropewalk.core.cursor import Step
from ropewalk.engine.audience import Audience, Backlog
from ropewalk.engine.broker import Broker
from ropewalk.engine.context import EngineContext
from ropewalk.engine.hub import Hub
from ropewalk.engine.prefixes import Prefixes
from ropewalk.model.errors import Unavailable
from ropewalk.model.history import Gap, GapReason, Replay, last_offset, split_at_gaps
from ropewalk.model.messages import Deliverable, Position, Registered
from ropewalk.ports import Feed, StreamStore

logger = logging.getLogger("ropewalk.feed")

MAX_UNKNOWN_STREAM_RETRIES = 3
"""Retries when the store has no record of a stream we already delivered from."""

MAX_BACKLOG_BYTES = 1024 * 1024
"""Messages buffered while one stream catches up. Above it they are dropped and later read from the store."""

BETWEEN_READS = Backoff(0.05, 2.0)

FOLLOW_SECONDS = 2.0
"""Timeout of a join that waits for its streams to catch up. The join is then retried."""

LINGER_SECONDS = 5.0
"""Time before the feed stops listening to a stream without listeners: a reloaded page subscribes again at once."""

MAX_COMPARED_STREAMS = 200
"""Streams compared with the store in one upkeep. Finds a lost message of a stream that has no newer messages."""


def _ignore(streams: Container[str]) -> None:
    """For feeds shared with other nodes: their listeners are not known here."""


class FeedReader:
    """Between a `Feed` and the hub. It also subscribes the feed to the streams that have listeners here.

    With an `exact` feed all streams are always up to date: `follow` and `reach` are not used.
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
        self._to_compare: list[str] = []  # streams that the periodic comparison has not reached in this round
        self._suspects: set[str] = set()  # streams to compare now: the feed may have lost messages of them
        self.exact = feed.exact
        self.hub = self._hub = Hub(context.stats, context.clock, None if feed.exact else self, context.limits.slice_writes)
        set_listened = broker.set_listened_streams if feed.exact else _ignore
        set_listened(self.hub.listened_streams)
        self.prefixes = self._prefixes = Prefixes(feed, self.hub, stream_key, set_listened)
        self._by_prefix = self.prefixes.by_length

    def deliver(self, messages: Sequence[Deliverable]) -> None:
        """Called by the feed. A message that cannot be delivered does not affect the others."""
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
                        keep_order(audience)
                    deliver(audience, message)
                elif step is not Step.OLD:
                    self._out_of_step(audience, message)
            except Exception:
                logger.exception("a message cannot be delivered", extra={"stream": message.stream})

    def _out_of_step(self, audience: Audience, message: Deliverable) -> None:
        if self._feed.exact:
            # Nothing is missing: this is the first message after a join, or the stream has restarted.
            audience.cursor.move(message.epoch, message.offset)
            if message.ordered or (message.fields is not None and message.fields.partition_key):
                self._hub.keep_order(audience)
            self._hub.deliver(audience, message)
        else:
            self._fall_behind(audience).add(message)

    # --- catching up --------------------------------------------------------------------------------------------------

    def _fall_behind(self, audience: Audience) -> Backlog:
        """Buffer the stream's messages until a task has read the missing ones."""
        self._stats.feed_fills += 1
        backlog = audience.waiting = Backlog(MAX_BACKLOG_BYTES)
        self._tasks.spawn(self._catch_up(audience, backlog))
        return backlog

    async def _catch_up(self, audience: Audience, backlog: Backlog, listened: bool = True) -> None:
        """Read and deliver until no message is missing, or the stream has no listener left."""
        failures = 0
        while self._hub.audiences.get(audience.stream) is audience:
            try:
                in_step = await self._read_on(audience, backlog) if listened else await self._begin(audience)
            except Unavailable as error:
                failures += 1
                # The health page reports that the store is down; this line is logged once per stream.
                logger.debug("cannot read a stream", extra={"stream": audience.stream, "reason": str(error)})
                await asyncio.sleep(BETWEEN_READS.delay(failures, self._chance))
                continue
            failures, listened = 0, True
            if in_step and not self._deliver_from(audience, backlog) and not backlog.overflowed:
                break
        audience.waiting = None
        if not backlog.ready.done():
            backlog.ready.set_result(None)

    async def _begin(self, audience: Audience) -> bool:
        """Start at the tip: later messages come through the feed, earlier ones are history."""
        await self._feed.listen(audience.stream)
        tip = await self._store.tip(audience.stream)
        audience.cursor.move(tip.epoch, tip.offset)
        return True

    async def _read_on(self, audience: Audience, backlog: Backlog) -> bool:
        """Deliver the messages that the store has above the cursor. False if it has more of them."""
        backlog.overflowed = False
        before = audience.cursor.position
        answer = await self._store.replay(audience.stream, before)
        if answer.epoch == before.epoch:
            audience.cursor.must_read = False
        self._deliver_answer(audience, backlog, answer)
        if last_offset(answer) < answer.tip:
            return False
        if audience.cursor.position == before and (left := self._deliver_from(audience, backlog)):
            self._drop_stray(audience, backlog, left[0])
        return True

    def _deliver_from(self, audience: Audience, backlog: Backlog) -> list[Deliverable]:
        """Deliver messages of the backlog up to the first that does not follow the cursor. Returns the rest, which stays."""
        backlog.messages[:0] = left = self._deliver_in_order(audience, backlog.take())
        return left

    def _drop_stray(self, audience: Audience, backlog: Backlog, stray: Deliverable) -> None:
        """Drop a message that the feed brought and a later read did not return. Its epoch ended before the stream had
        listeners here, or the store has lost it."""
        logger.warning("a message is not in the store", extra={"stream": audience.stream, "offset": stray.offset})
        backlog.messages.remove(stray)

    def _deliver_answer(self, audience: Audience, backlog: Backlog, answer: Replay | Gap) -> None:
        """Deliver an answer of the store, which begins right after the cursor, and report its gaps. Messages of the backlog
        fill them where they can, because the store may keep no history."""
        cursor, epoch, tip, upto = audience.cursor, answer.epoch, answer.tip, last_offset(answer)
        restarted = bool(cursor.epoch) and cursor.epoch != epoch
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
            if restarted:
                first = offsets[0] if offsets else upto + 1
                self._report_gap(audience, Gap(audience.stream, GapReason.EPOCH_CHANGED, epoch, first, tip), after)
        for offset in offsets:
            if offset > cursor.offset + 1:
                self._report_gap(audience, Gap(audience.stream, GapReason.TRIMMED, epoch, offset, tip), cursor.position)
            if cursor.take(epoch, offset) is Step.NEXT:
                self._hub.deliver(audience, found[offset])
        if upto > cursor.offset:
            self._report_gap(audience, Gap(audience.stream, GapReason.TRIMMED, epoch, upto + 1, tip), cursor.position)

    def _report_gap(self, audience: Audience, gap: Gap, after: Position) -> None:
        """Report a gap and move the cursor past it."""
        audience.cursor.move(gap.epoch, gap.oldest - 1)
        self._hub.send_gap(audience, gap, after)

    def _deliver_new(self, audience: Audience, messages: Iterable[Registered]) -> None:
        for message in messages:
            if audience.cursor.take(message.epoch, message.offset) is Step.NEXT:
                self._hub.deliver(audience, message)

    def _deliver_in_order(self, audience: Audience, messages: list[Deliverable]) -> list[Deliverable]:
        """Deliver messages up to the first that does not follow the cursor. Returns the rest."""
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
        """Wait until the streams have caught up, so that no later message is missed. The caller collects them, so they have an
        audience. Returns the position delivered on each stream. Raises `Unavailable`."""
        try:
            async with asyncio.timeout(FOLLOW_SECONDS):
                for stream in streams:
                    await self._in_step(self._hub.audiences[stream])
        except TimeoutError:
            raise Unavailable("the store or the feed does not answer") from None
        return [self._hub.audiences[stream].cursor.position for stream in streams]

    def check(self, answer: Replay | Gap, delivered: Position, failures: int) -> None:
        """Reject a stale answer: a store server that was cut off may return less than was `delivered` before the request. An
        answer without any record of the stream is accepted after some retries: the stream may be lost. Raises
        `Unavailable`."""
        if answer.epoch == delivered.epoch:
            behind = answer.tip < delivered.offset
        elif answer.epoch:
            behind = self._hub.audiences[answer.stream].cursor.is_over(answer.epoch)
        else:
            behind = failures < MAX_UNKNOWN_STREAM_RETRIES
        if behind:
            raise Unavailable("the store is behind")

    async def reach(self, answer: Replay | Gap) -> None:
        """Bring the stream's other listeners to the tip of an answer that a joining client has read from the store. Otherwise
        that client would receive messages of the answer a second time, live."""
        audience = self._hub.audiences[answer.stream]
        await self._in_step(audience)
        tip = Position(answer.epoch, answer.tip)
        if not tip.epoch and audience.cursor.epoch:
            # The store lost the stream, or no longer keeps it. The joining client has no position, so a message still in
            # transit must not be delivered as the next one.
            audience.cursor.must_read = True
        if not audience.cursor.behind(tip):
            return
        if audience.cursor.epoch == answer.epoch and isinstance(answer, Replay):
            self._deliver_new(audience, answer.messages)
        if audience.cursor.behind(tip):
            self._fall_behind(audience)
            await self._in_step(audience)
        if audience.cursor.behind(tip):
            # The stream was lost between the two reads. The joining client has the history up to the tip, so a message below
            # it that is still in transit must not be delivered.
            audience.cursor.must_read = True

    async def _in_step(self, audience: Audience) -> None:
        while audience.waiting is not None:
            await asyncio.shield(audience.waiting.ready)

    # --- interest -----------------------------------------------------------------------------------------------------

    def first(self, audience: Audience) -> None:
        """Listen to the stream and set its cursor to the store's tip."""
        self._lingering.pop(audience.stream, None)
        backlog = audience.waiting = Backlog(MAX_BACKLOG_BYTES)
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
        for _ in range(min(MAX_COMPARED_STREAMS, len(self._to_compare))):
            await self._compare(self._to_compare.pop())

    async def _compare(self, stream: str) -> None:
        tip = await self._store.tip(stream)
        audience = self._hub.audiences.get(stream)
        if audience is not None and audience.waiting is None and audience.cursor.behind(tip):
            self._fall_behind(audience)

    def missed(self, streams: Collection[str] | None = None) -> None:
        """The feed may have lost messages of these streams; None: of any stream. They are compared with the store. Lost
        messages of ephemeral streams cannot be read, or even detected, so their listeners always get a gap. Prefix
        subscriptions get one if any stream may be affected."""
        if streams is None:
            self._prefixes.missed()
            streams = list(self._hub.audiences)
        audiences = [audience for stream in streams if (audience := self._hub.audiences.get(stream)) is not None]
        for audience in audiences:
            if self._is_ephemeral(audience.stream):
                self._hub.send_gap(audience, Gap(audience.stream, GapReason.TRIMMED, "", 1, 0), Position("", 0))
        first = not self._suspects
        self._suspects.update(audience.stream for audience in audiences)
        if first and self._suspects:
            self._tasks.spawn(self._compare_suspects())

    async def _compare_suspects(self) -> None:
        failures = 0
        while self._suspects:
            stream = self._suspects.pop()
            try:
                await self._compare(stream)
                failures = 0
            except Unavailable:
                failures += 1
                await asyncio.sleep(BETWEEN_READS.delay(failures, self._chance))
                self._suspects.add(stream)
