"""The sending side of one connection. Writes go straight to the transport, or to an outbox while the peer is slow.

The hub writes through a callable that the link puts into its groups: the socket's `send` or the transport's `write` on the fast
path, the outbox on the slow path.
"""

import asyncio
from collections.abc import Collection, Hashable
from functools import partial
from typing import NamedTuple, Protocol

from ropewalk.core.outbox import Outbox, Skipped
from ropewalk.core.rules import Rulebook
from ropewalk.core.stats import Stats
from ropewalk.engine.audience import Group, Write, discard
from ropewalk.model.closing import Closing
from ropewalk.model.history import Gap, GapReason
from ropewalk.model.messages import Position
from ropewalk.model.rules import SinceGaps, SlowPolicy
from ropewalk.ports import Connection
from ropewalk.protocol.codec import SessionCodec

DRAIN_BYTES = 65536  # the default high-water mark of a transport


class LinkOwner(Protocol):
    """The session of a link."""

    def stalled(self) -> None:
        """Deliveries begin to wait although the transport would take them."""

    def overflowed(self) -> None:
        """The outbox is full. Called once, in the middle of a fan-out: end the connection later, not now."""

    def skipped(self, group: Group, after: Position, upto: Position) -> None:
        """Messages of this group were dropped: those above `after`, up to and with `upto`."""


class _NoOwner:
    """The owner of a link that has ended. Breaks the reference cycle between a session and its link."""

    def stalled(self) -> None:
        pass

    def overflowed(self) -> None:
        pass

    def skipped(self, group: Group, after: Position, upto: Position) -> None:
        pass


NO_OWNER = _NoOwner()


class Expendable(NamedTuple):
    """Outbox key of a group's messages that may be dropped regardless of the rule of its stream."""

    group: Group


class Link:
    """`names`: the client's current and former sids. `hung_up`: the client has half-closed, and only waits for its answers."""

    __slots__ = (
        "_connection",
        "_direct",
        "_groups",
        "_outbox",
        "_owner",
        "_paused",
        "_prefixes",
        "_rules",
        "_stats",
        "_waiting",
        "codec",
        "hung_up",
        "limit",
        "names",
        "open",
    )

    drain_bytes = DRAIN_BYTES

    def __init__(
        self, owner: LinkOwner, connection: Connection, codec: SessionCodec, rules: Rulebook, stats: Stats, limit: int
    ) -> None:
        self.codec = codec
        self.names: tuple[str, ...] = ()
        self.open = True
        self.hung_up = False
        self._connection = connection
        self._direct = connection.direct
        self._rules = rules
        self._stats = stats
        self.limit = limit
        self._owner: LinkOwner = owner
        self._groups: dict[Group, None] = {}
        self._prefixes = 0
        self._outbox: Outbox | None = None
        self._paused = False
        self._waiting: asyncio.Future[None] | None = None

    # --- deliveries ---------------------------------------------------------------------------------------------------

    def attach(self, group: Group) -> None:
        if self._groups:
            self._write_together()
        self._groups[group] = None
        self._prefixes += group.on_empty is not None
        group.writers[self] = self._writer(group)

    def _write_together(self) -> None:
        """Stop direct writes: with several groups in one tick they would cost a system call each."""
        if self._direct is not None:
            self._direct.end()
            self._direct = None
            self._place_writers()

    @property
    def groups(self) -> Collection[Group]:
        return self._groups

    @property
    def prefixes(self) -> int:
        """The number of its prefix groups."""
        return self._prefixes

    def detach(self, group: Group) -> None:
        del self._groups[group]
        self._prefixes -= group.on_empty is not None

    def missed(self, group: Group, after: Position, upto: Position) -> None:
        self._owner.skipped(group, after, upto)

    def write_rest(self, rest: bytes) -> None:
        """Write the rest of a partial write. The connection pauses, so that nothing overtakes it."""
        self._connection.write(rest)

    def _writer(self, group: Group) -> Write:
        if not self.open:
            return discard
        if self._outbox is None:
            return self._connection.write if self._direct is None else self._direct.send
        group.apart = True
        return partial(self._offer, group, self._rules.of(group.stream).slow_consumer)

    def _offer(self, key: Group | None, policy: SlowPolicy, frame: bytes) -> None:
        if not self.open:
            return
        if key is None:
            self._put(None, frame, policy)
            return
        key.apart = True
        if key.expendable:
            self._put(Expendable(key), frame, SlowPolicy.DROP)
        else:
            self._put(key, frame, policy, key.written, key.newest)

    def _put(
        self, key: Hashable, frame: bytes, policy: SlowPolicy, before: Position | None = None, after: Position | None = None
    ) -> None:
        outbox = self._outbox
        if outbox is None:
            return
        dropped = outbox.dropped
        if not outbox.offer(key, frame, policy, before, after):
            self.overflow()
        self._stats.outbox_drops += outbox.dropped - dropped

    def may_skip(self, stream: str) -> bool:
        """Whether messages of this stream are dropped rather than the connection closed."""
        return self._rules.of(stream).slow_consumer is SlowPolicy.DROP

    def rejects_since(self, stream: str) -> bool:
        """Whether a trimmed request by time is rejected, for clients that do not take positions."""
        return self._rules.of(stream).since_gaps is SinceGaps.REJECT

    def overflow(self) -> None:
        """The outbox is full."""
        if self.open:
            self.open = False
            self._owner.overflowed()

    async def wait_ready(self) -> None:
        await self._connection.wait_ready()

    async def drained(self) -> None:
        """Wait until the outbox is empty or the link has ended. Returns at once on the fast path."""
        if self._outbox is not None and self.open:
            if self._waiting is None:
                self._waiting = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._waiting)

    def _wake(self) -> None:
        if self._waiting is not None:
            self._waiting.set_result(None)
            self._waiting = None

    def send(self, frame: bytes) -> None:
        """Send a reply, after what is in the outbox."""
        if not self.open or not frame:
            return
        if self._outbox is None:
            self._connection.write(frame)
        else:
            self._offer(None, SlowPolicy.DISCONNECT, frame)

    def answer(self, frame: bytes) -> None:
        """Send a reply that may overtake pending deliveries."""
        self.send(frame)

    def forget(self, groups: Collection[Group]) -> None:
        """The client has unsubscribed: discard the pending messages of these groups, which it has left."""
        if self._outbox is not None and groups:
            streams = (group.stream for group in groups if group.on_empty is None)
            self._outbox.discard({*groups, *map(Expendable, groups), *streams})

    # --- slow and fast ------------------------------------------------------------------------------------------------

    @property
    def slow(self) -> bool:
        """Whether writes go to the outbox."""
        return self._outbox is not None

    @property
    def stuck(self) -> bool:
        """Whether the transport takes no more for now."""
        return self._paused

    def pause(self) -> None:
        self._paused = True
        if self._outbox is None:
            self._outbox = Outbox(self.limit)
            self._place_writers()

    def resume(self) -> None:
        """The transport takes bytes again: drain the outbox, then return to the fast path."""
        self._paused = False
        self._go_on()

    def _takes(self) -> bool:
        return not self._paused

    def _go_on(self) -> None:
        while self._outbox and self._takes():
            self._drain(self._outbox)
        if self._outbox is not None and self._takes():
            self._outbox = None
            self._place_writers()
            self._wake()

    def _drain(self, outbox: Outbox) -> None:
        for item in outbox.take(self.drain_bytes):
            match item:
                case Skipped(Group() as group, Position() as after, Position() as upto):
                    self._write(self._skip_notice(group, after, upto))
                case Skipped(Expendable(group)):
                    if notice := self._drop_notice(group):
                        self._write(notice)
                case bytes():
                    self._write(item)

    def _write(self, frame: bytes) -> None:
        self._connection.write(frame)

    def _skip_notice(self, group: Group, after: Position, upto: Position) -> bytes:
        """A gap up to the last dropped message."""
        self._stats.gaps[GapReason.DROPPED] += 1
        self._owner.skipped(group, after, upto)
        gap = Gap(group.stream, GapReason.DROPPED, upto.epoch, upto.offset + 1, group.newest.offset)
        return group.codec.reject_history(group.identifier, [gap])

    def _drop_notice(self, group: Group) -> bytes:
        """A gap for dropped messages without a position. Empty for clients that do not track positions: to them a rejection
        means that history is missing, and these messages are never in the history."""
        if not self.codec.reports_positions:
            return b""
        self._stats.gaps[GapReason.DROPPED] += 1
        return group.codec.reject_history(group.identifier, [Gap(group.stream, GapReason.DROPPED, "", 1, 0)])

    def _place_writers(self) -> None:
        for group in self._groups:
            group.writers[self] = self._writer(group)

    def hang_up(self) -> None:
        """The client has half-closed its connection."""
        self.hung_up = True

    def pending(self) -> int:
        return self._connection.pending() + (self._outbox.size if self._outbox else 0)

    def unsent(self) -> int:
        """A number that changes when the client takes pending bytes."""
        return self._connection.unsent()

    # --- the end ------------------------------------------------------------------------------------------------------

    def close(self, closing: Closing) -> None:
        """Send the reason if the protocol has a frame for it, and close. The outbox is discarded."""
        self.lose()
        if goodbye := self.codec.disconnect(closing):
            self._connection.write(goodbye)
        self._connection.close(closing.code, closing.text)

    def lose(self) -> None:
        """The connection is lost: discard the outbox."""
        self.open = False
        self._owner = NO_OWNER
        self._outbox = None
        self._wake()
