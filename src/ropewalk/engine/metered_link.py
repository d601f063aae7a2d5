"""The link of a client that grants credit: deliveries stop when it is used up, as they do when the transport takes no more.

Frames are counted and queued one by one, each with the position of its messages, so that a gap can be reported at any of them.
Answers do not wait for credit. So an unsubscribe discards the pending frames of its subscription; otherwise they would arrive
after the answer to the next subscribe. A half-closed client grants no more credit, so its deliveries end with the credit it
has. A client that grants no credit while frames are pending counts as one that does not read.
"""

from collections.abc import Hashable
from functools import partial

from ropewalk.core.outbox import Outbox
from ropewalk.core.rules import Rulebook
from ropewalk.core.stats import Stats
from ropewalk.engine.audience import Group, Write
from ropewalk.engine.link import Expendable, Link, LinkOwner
from ropewalk.model.messages import Position
from ropewalk.model.rules import SlowPolicy
from ropewalk.ports import Connection
from ropewalk.protocol.codec import Meter, SessionCodec


class MeteredLink(Link):
    __slots__ = ("_meter", "_sent")

    drain_bytes = 1  # one frame at a time

    def __init__(
        self,
        owner: LinkOwner,
        connection: Connection,
        codec: SessionCodec,
        rules: Rulebook,
        stats: Stats,
        limit: int,
        meter: Meter,
    ) -> None:
        super().__init__(owner, connection, codec, rules, stats, limit)
        self._meter = meter
        self._sent = 0  # bytes of deliveries

    def granted(self) -> None:
        """The client has granted more credit."""
        self._go_on()

    def hang_up(self) -> None:
        super().hang_up()
        self._go_on()

    @property
    def _starved(self) -> bool:
        return self.hung_up and self._meter.left <= 0

    @property
    def stuck(self) -> bool:
        waits = bool(self._outbox) or self._waiting is not None
        return super().stuck or (self._meter.left <= 0 and waits)

    def unsent(self) -> int:
        """Answers do not count: they need no credit."""
        return (super().unsent() if super().stuck else 0) - self._sent

    async def drained(self) -> None:
        if self._starved:
            return
        if self._meter.left <= 0:  # the outbox may be empty: the sender of the history waits here
            self._owner.stalled()
        await super().drained()

    def _go_on(self) -> None:
        super()._go_on()
        if self._starved:
            self._outbox = None
            self._wake()

    def send(self, frame: bytes) -> None:
        """Send history, or a frame that must stay in order with it."""
        if frame:
            self._deliver(None, SlowPolicy.DISCONNECT, frame)

    def answer(self, frame: bytes) -> None:
        """Send past the pending frames. The number of waiting answers is bounded: while the transport takes nothing, no
        further commands are read."""
        if self.open and frame:
            self._connection.write(frame)

    def _takes(self) -> bool:
        return self._meter.left > 0 and super()._takes()

    def _writer(self, group: Group) -> Write:
        return partial(self._deliver, group, self._rules.of(group.stream).slow_consumer)

    def _deliver(self, group: Group | None, policy: SlowPolicy, data: bytes) -> None:
        if self._outbox is None and len(data) <= self._meter.left:
            if self.open:
                self._write(data)
            return
        before = group.written if group else None
        for part in self._meter.parts(data):
            after = part.position or before
            if not self.open or self._starved:
                return
            if self._outbox is None:
                self._write(part.frame)
            elif group is not None and part.stream and part.position is None:
                self._put(Expendable(group), part.frame, SlowPolicy.DROP)
            else:
                self._put(group or part.stream, part.frame, policy, before, after)
            before = after

    def _put(
        self, key: Hashable, frame: bytes, policy: SlowPolicy, before: Position | None = None, after: Position | None = None
    ) -> None:
        began = not self._outbox
        super()._put(key, frame, policy, before, after)
        if began and self.open and self._outbox:
            self._owner.stalled()

    def _write(self, frame: bytes) -> None:
        super()._write(frame)
        self._sent += len(frame)
        self._meter.left -= self._meter.counted(frame)
        if self._meter.left <= 0 and self._outbox is None:
            self._outbox = Outbox(self.limit)
