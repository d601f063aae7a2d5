"""The hub delivers the messages of each stream to its listeners. A message is encoded once per (identifier, codec).

The deliveries of one event-loop turn are collected per group, encoded together and written once per connection at its end. The
number of writes in one turn is bounded. The rest follows in the next ones, and takes further messages with it. Small audiences
go first.

The fast path does not check for slow connections: a slow connection has replaced its `write` callable.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Container
from itertools import groupby
from typing import Protocol

from ropewalk.core.stats import Stats
from ropewalk.engine.audience import Audience, Group, JoinBuffer, Listener, QueuedGap, Write, discard
from ropewalk.model.history import Gap
from ropewalk.model.messages import Deliverable, Position
from ropewalk.ports import Clock
from ropewalk.protocol.codec import MessageCodec

logger = logging.getLogger("ropewalk.engine")

SLICE_SECONDS = 0.002
MAX_SLICES = 5
"""In one turn, if other work kept the loop that much longer: deliveries get half of the time."""

MAX_PENDING_BYTES = 1024 * 1024
"""Messages of one group that wait to be written, without the first."""

BYTES_AS_A_WRITE = 16 * 1024
"""Bytes of a write that take as long as a further small write."""


class Interest(Protocol):
    """Called when a stream gets an audience and when it loses it."""

    def first(self, audience: Audience) -> None:
        """The stream has its first listener."""

    def last(self, audience: Audience) -> None:
        """The last listener has left the stream."""


class Hub:
    """Joins and leaves flush pending messages of their group first, so that a listener gets none from before it joined.

    Args:
        interest: notified when a stream gets its first listener or loses its last one.
        slice_writes: writes in one turn, and listeners in one group.
    """

    def __init__(self, stats: Stats, clock: Clock, interest: Interest | None = None, slice_writes: int = 256) -> None:
        self._stats = stats
        self._clock = clock
        self._interest = interest
        self._slice = slice_writes
        self.audiences: dict[str, Audience] = {}
        self.listened_streams: Container[str] = self.audiences
        self._small: deque[Group] = deque()
        self._large: deque[Group] = deque()  # groups of divided audiences
        self._last_ordered: Audience | None = None
        self._encoded: tuple[Group, list[Deliverable], bytes] | None = None  # the last write of a divided audience
        self._written = 0  # writes of this turn; large ones count more
        self._paused_at = 0.0
        self._flush_due = False
        self._loop: asyncio.AbstractEventLoop | None = None

    def streams(self) -> int:
        return len(self.audiences)

    # --- listeners ----------------------------------------------------------------------------------------------------

    def join(self, stream: str, identifier: str, codec: MessageCodec, listener: Listener) -> Group:
        return self.enter(self._audience(stream), identifier, codec, listener)

    def enter(
        self,
        audience: Audience,
        identifier: str,
        codec: MessageCodec,
        listener: Listener,
        on_empty: Callable[[Group], None] | None = None,
    ) -> Group:
        group = audience.group(identifier, codec, self._slice, on_empty)
        self._flush_group(group)
        listener.attach(group)
        return group

    def leave(self, group: Group, listener: Listener) -> None:
        self._flush_group(group)
        listener.detach(group)
        group.writers.pop(listener, None)
        if group.writers:
            return
        if group.on_empty is not None:
            group.on_empty(group)
        elif audience := self.audiences.get(group.stream):
            audience.remove(group)
            self._forget_if_empty(audience)

    def silence(self, groups: Collection[Group], listener: Listener) -> None:
        """Flush pending messages, then write nothing more to a listener that is about to leave these groups."""
        for group in groups:
            self._flush_group(group)
            group.writers[listener] = discard

    def collect(self, stream: str, limit: int) -> JoinBuffer:
        """Buffer everything that is delivered on `stream` from now until `release`: for a join in progress."""
        buffer = JoinBuffer(limit)
        self._audience(stream).buffers.add(buffer)
        return buffer

    def release(self, stream: str, buffer: JoinBuffer) -> None:
        audience = self.audiences[stream]
        audience.buffers.remove(buffer)
        self._forget_if_empty(audience)

    def _audience(self, stream: str) -> Audience:
        audience = self.audiences.get(stream)
        if audience is None:
            audience = self.audiences[stream] = Audience(stream)
            if self._interest is not None:
                self._interest.first(audience)
        return audience

    def _forget_if_empty(self, audience: Audience) -> None:
        if not audience.groups and not audience.buffers:
            del self.audiences[audience.stream]
            if self._interest is not None:
                self._interest.last(audience)

    # --- deliveries ---------------------------------------------------------------------------------------------------

    def deliver(self, audience: Audience, message: Deliverable) -> None:
        """Queue a message for all listeners. It is written at the end of this turn, or in the next ones."""
        for buffer in audience.buffers:
            buffer.add(message)
        groups = audience.groups
        if not groups:
            return
        apart = bool(message.exclude_socket)
        for group in groups:
            if group.pending:
                group.size += message.size
                if group.size > MAX_PENDING_BYTES:
                    self._flush_group(group)  # publishers are faster than deliveries, and wait for them here
            group.pending.append(message)
            if apart:
                group.apart = True
            if not group.queued:
                self._queue(group)
                audience.slowest = group
        slowest = audience.slowest or group
        if slowest.registered is None:
            slowest.registered = {}
        slowest.registered[message.timestamp] = slowest.registered.get(message.timestamp, 0) + message.count

    def keep_order(self, audience: Audience) -> None:
        """Before a message with a partition key: write pending messages of the stream that had one before."""
        former, self._last_ordered = self._last_ordered, audience
        if former is not None and former is not audience:
            for group in former.groups:
                self._flush_group(group)

    def send_gap(self, audience: Audience, gap: Gap, after: Position) -> None:
        """Report to all listeners that the messages above `after`, up to the end of the gap, are missing. Joins in progress get
        the gap in their buffers. A gap without an epoch is about messages without a position."""
        for buffer in audience.buffers:
            buffer.add_gap(gap)
        for group in audience.groups:
            group.pending.append(QueuedGap(gap, after))
            group.apart = True
            if not group.queued:
                self._queue(group)
                audience.slowest = group

    def _queue(self, group: Group) -> None:
        group.queued = True
        (self._large if group.divided else self._small).append(group)
        self._flush_later()

    def _flush_later(self) -> None:
        if not self._flush_due:
            self._flush_due = True
            if self._loop is None:
                self._loop = asyncio.get_running_loop()  # cached: each lookup calls getpid
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Write what is pending, up to a bound. At least one group of each kind is written."""
        self._flush_due = False
        if self._loop is None:
            return
        self._written, bound = 0, self._bound()
        try:
            for queue in (self._small, self._large):
                while queue:
                    group = queue.popleft()
                    group.queued = False
                    self._flush_group(group)
                    if self._written >= bound:
                        break
        finally:
            self._encoded = None
            self._paused_at = 0.0
            if self._small or self._large:
                self._paused_at = self._clock()
                self._flush_later()

    def _bound(self) -> int:
        if not self._paused_at:
            return self._slice
        others = self._clock() - self._paused_at
        return int(self._slice * min(MAX_SLICES, max(1.0, others / SLICE_SECONDS)))

    def _flush_group(self, group: Group) -> None:
        pending = group.pending
        if not pending:
            return
        group.pending, group.size = [], 0
        if group.apart:
            group.apart = False
            self._send_apart(group, pending)
        else:
            self._send(group, group.writers.items(), pending)  # type: ignore[arg-type]  # gaps are sent apart
        if group.registered is not None:
            registered, group.registered = group.registered, None
            now, observe = self._clock(), self._stats.publish_to_deliver.observe
            for registered_at, count in registered.items():
                observe(max(0.0, now - registered_at), count)

    def _send_apart(self, group: Group, pending: list[Deliverable | QueuedGap]) -> None:
        for (is_gap, expendable, excluded), some in groupby(pending, _kind):
            if is_gap:
                for queued in some:
                    self._send_gap(group, queued)  # type: ignore[arg-type]
                continue
            writers: Collection[tuple[Listener, Write]] = group.writers.items()
            if excluded:
                writers = [entry for entry in writers if excluded not in entry[0].names]
            group.expendable = expendable
            self._send(group, writers, list(some))  # type: ignore[arg-type]
        group.expendable = False

    def _send_gap(self, group: Group, queued: QueuedGap) -> None:
        gap, upto = queued.gap, queued.gap.upto
        self._stats.gaps[gap.reason] += len(group.writers)
        group.newest = upto
        for listener in list(group.writers) if gap.epoch else ():
            listener.missed(group, queued.after, upto)
        self._write(group.writers.items(), group.codec.reject_history(group.identifier, [gap]), 1)
        group.written = upto

    def _send(self, group: Group, writers: Collection[tuple[Listener, Write]], messages: list[Deliverable]) -> None:
        known = self._encoded
        if known is not None and _is_same(known, group, messages):
            blob = known[2]
        else:
            try:
                blob = group.codec.batch(group.head, messages)
            except Exception:
                messages, blob = self._deliverable(group, messages)
            if group.divided:
                self._encoded = group, messages, blob
        for message in reversed(messages):
            if message.offset:
                group.newest = Position(message.epoch, message.offset)
                break
        count = messages[0].count if len(messages) == 1 else sum([message.count for message in messages])
        self._write(writers, blob, count)
        group.written = group.newest

    def _deliverable(self, group: Group, messages: list[Deliverable]) -> tuple[list[Deliverable], bytes]:
        """Encode one by one, so that a message that cannot be encoded does not affect the others."""
        encoded: list[tuple[Deliverable, bytes]] = []
        for message in messages:
            try:
                encoded.append((message, group.codec.batch(group.head, [message])))
            except Exception:
                logger.exception("a message cannot be delivered", extra={"stream": group.stream})
        return [message for message, _ in encoded], b"".join(blob for _, blob in encoded)

    def _write(self, writers: Collection[tuple[Listener, Write]], blob: bytes, count: int) -> None:
        size = len(blob)
        for listener, write in writers:
            try:
                try:
                    taken = write(blob)
                except OSError:
                    taken = 0
                if taken is not None and taken != size:
                    listener.write_rest(blob[taken:])
            except Exception:  # one broken link must not cost the others their message
                logger.exception("delivery failed")
        self._written += len(writers) * (1 + size // BYTES_AS_A_WRITE)
        self._stats.deliveries += count * len(writers)
        self._stats.delivered_bytes += size * len(writers)


def _kind(item: Deliverable | QueuedGap) -> tuple[bool, bool, str]:
    """Neighbours of one kind are sent together."""
    return (True, False, "") if isinstance(item, QueuedGap) else (False, item.expendable, item.exclude_socket)


def _is_same(known: tuple[Group, list[Deliverable], bytes], group: Group, messages: list[Deliverable]) -> bool:
    """Whether a group gets the bytes that another group of its stream got."""
    other, written, _ = known
    return (
        other.stream == group.stream
        and other.identifier == group.identifier
        and other.codec is group.codec
        and written == messages
    )
