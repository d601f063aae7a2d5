"""The hub keeps the listeners of each stream and delivers messages. A message is encoded once per (identifier, codec).

The deliveries of one event-loop tick are collected per group, encoded together and written once per connection at its end. The
fast path does not check for slow connections: a slow connection has replaced its `write` callable.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Container, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Protocol

from ropewalk.core.cursor import Cursor
from ropewalk.core.stats import Stats
from ropewalk.model.history import MESSAGE_OVERHEAD_BYTES, Gap
from ropewalk.model.messages import Deliverable, Position, Registered
from ropewalk.ports import Clock
from ropewalk.protocol.codec import MessageCodec

logger = logging.getLogger("ropewalk.engine")

Write = Callable[[bytes], int | None]
"""Returns the number of bytes written, or None if all were. May raise OSError."""


def discard(frame: bytes) -> None:
    """The writer of a listener that has ended."""


class Listener(Protocol):
    """A listener of a group. `names`: the sids that `exclude_socket` is matched with. `attach` sets its writer in the group."""

    names: tuple[str, ...]

    def attach(self, group: "Group") -> None: ...
    def detach(self, group: "Group") -> None: ...
    def missed(self, group: "Group", after: Position, upto: Position) -> None:
        """Messages above `after`, up to and with `upto`, are lost. The next frame reports the gap to the client."""

    def write_rest(self, rest: bytes) -> None:
        """Write the bytes that its writer did not take."""


class Group:
    """The listeners of one stream who get the same bytes: same identifier, same codec.

    `pending`: messages that are not written yet. During a write, `newest` is the position of the last message in it, and
    `written` that of the last message before it. Slow listeners set `slow`: the next write then separates messages that may be
    dropped from the others, and `expendable` is True while the former are written. Every write clears `slow`.
    """

    __slots__ = (
        "codec",
        "expendable",
        "head",
        "identifier",
        "newest",
        "on_empty",
        "pending",
        "slow",
        "stream",
        "writers",
        "written",
    )

    def __init__(self, stream: str, identifier: str, codec: MessageCodec, on_empty: Callable[[], None] | None = None) -> None:
        """`on_empty` is called when the last listener leaves. Set for prefix groups only."""
        self.stream = stream
        self.identifier = identifier
        self.codec = codec
        self.head = codec.head(identifier)
        self.writers: dict[Listener, Write] = {}
        self.pending: list[Deliverable] = []
        self.slow = False
        self.expendable = False
        self.newest = self.written = Position("", 0)
        self.on_empty = on_empty


class JoinBuffer:
    """Buffers a stream's messages and gaps, in order, while a join is in progress. Above its limit it is `full` and empty.
    Messages that may be dropped never fill it: they are dropped first, and `skipped` is set.

    `last` is the newest position received, buffered or not.
    """

    __slots__ = ("_room", "full", "items", "last", "skipped")

    def __init__(self, limit: int) -> None:
        self._room = limit
        self.full = False
        self.skipped = False
        self.last: Registered | Position | None = None
        self.items: list[Deliverable | Gap] = []

    def add(self, message: Deliverable) -> None:
        if isinstance(message, Registered) and message.offset:
            self.last = message
        if message.expendable and message.size > self._room:
            self.skipped = True
        else:
            self._keep(message, message.size)

    def add_gap(self, gap: Gap) -> None:
        if gap.epoch:
            self.last = gap.upto
        self._keep(gap, MESSAGE_OVERHEAD_BYTES)

    def _keep(self, item: Deliverable | Gap, size: int) -> None:
        self._room -= size
        if self._room < 0:
            self._drop_expendable()
        self.full = self._room < 0
        if self.full:
            self.items.clear()
        else:
            self.items.append(item)

    def _drop_expendable(self) -> None:
        kept: list[Deliverable | Gap] = []
        for item in self.items:
            if isinstance(item, Gap) or not item.expendable:
                kept.append(item)
            else:
                self._room += item.size
                self.skipped = True
        self.items = kept

    def take(self) -> list[Deliverable | Gap]:
        taken, self.items = self.items, []
        self._room += sum(MESSAGE_OVERHEAD_BYTES if isinstance(item, Gap) else item.size for item in taken)
        return taken


class Backlog:
    """Messages that arrived while a stream is catching up. Above its limit it is emptied: the store has the messages.

    `ready` is resolved when the stream has caught up.
    """

    __slots__ = ("_limit", "_room", "messages", "overflowed", "ready")

    def __init__(self, limit: int) -> None:
        self._limit = self._room = limit
        self.messages: list[Deliverable] = []
        self.overflowed = False
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def add(self, message: Deliverable) -> None:
        self._room -= message.size + MESSAGE_OVERHEAD_BYTES
        if self._room < 0:
            self.overflowed = True
            self.messages.clear()
        else:
            self.messages.append(message)

    def take(self) -> list[Deliverable]:
        taken, self.messages = self.messages, []
        self._room = self._limit
        return taken


class Audience:
    """The listeners of one stream in this process: groups of links, and joins in progress.

    `cursor` is the last position delivered to them. `waiting` is None while the stream is up to date with the feed. Otherwise
    it buffers messages until `engine/feed.py` has read the missing ones.
    """

    __slots__ = ("buffers", "cursor", "groups", "stream", "waiting")

    def __init__(self, stream: str) -> None:
        self.stream = stream
        self.groups: dict[tuple[str, MessageCodec], Group] = {}
        self.buffers: set[JoinBuffer] = set()
        self.cursor = Cursor()
        self.waiting: Backlog | None = None


class Interest(Protocol):
    """Called when a stream gets an audience and when it loses it."""

    def first(self, audience: Audience) -> None:
        """The stream has its first listener."""

    def last(self, audience: Audience) -> None:
        """The last listener has left the stream."""


class Hub:
    """Joins and leaves flush pending messages first, so that a listener gets none from before it joined."""

    def __init__(self, stats: Stats, clock: Clock, interest: Interest | None = None) -> None:
        """`interest` is notified when a stream gets its first listener or loses its last one."""
        self._stats = stats
        self._clock = clock
        self._interest = interest
        self.audiences: dict[str, Audience] = {}
        self.listened_streams: Container[str] = self.audiences
        self._dirty: list[Group] = []
        self._registered_at: dict[float, int] = {}  # timestamp → number of messages
        self._flush_due = False
        self._loop: asyncio.AbstractEventLoop | None = None

    def streams(self) -> int:
        return len(self.audiences)

    def join(self, stream: str, identifier: str, codec: MessageCodec, listener: Listener) -> Group:
        groups = self._audience(stream).groups
        group = groups.get((identifier, codec))
        if group is None:
            group = groups[identifier, codec] = Group(stream, identifier, codec)
        self.enter(group, listener)
        return group

    def enter(self, group: Group, listener: Listener) -> None:
        self._flush_group(group)
        listener.attach(group)

    def leave(self, group: Group, listener: Listener) -> None:
        self._flush_group(group)
        listener.detach(group)
        group.writers.pop(listener, None)
        if group.on_empty is not None:
            if not group.writers:
                group.on_empty()
        elif not group.writers and (audience := self.audiences.get(group.stream)):
            audience.groups.pop((group.identifier, group.codec), None)
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

    def deliver(self, audience: Audience, message: Deliverable) -> None:
        """Queue a message for all listeners. It is written at the end of this tick."""
        for buffer in audience.buffers:
            buffer.add(message)
        if not audience.groups:
            return
        self._flush_later()
        registered_at, at = self._registered_at, message.timestamp
        registered_at[at] = registered_at.get(at, 0) + message.count
        for group in audience.groups.values():
            if message.exclude_socket:
                self._write_excluding(group, message)
                continue
            if not group.pending:
                self._dirty.append(group)
            group.pending.append(message)

    def keep_order(self, stream: str) -> None:
        """Write pending messages of other streams before the next message of this one."""
        for group in self._dirty:
            if group.stream != stream:
                self._flush_dirty()
                return

    def send_gap(self, audience: Audience, gap: Gap, after: Position) -> None:
        """Report to all listeners that the messages above `after`, up to the end of the gap, are missing. Joins in progress get
        the gap in their buffers. A gap without an epoch is about messages without a position."""
        for buffer in audience.buffers:
            buffer.add_gap(gap)
        upto = gap.upto
        for group in audience.groups.values():
            self._flush_group(group)
            self._stats.gaps[gap.reason] += len(group.writers)
            group.newest = upto
            for listener in list(group.writers) if gap.epoch else ():
                listener.missed(group, after, upto)
            self._write(group.writers.items(), group.codec.reject_history(group.identifier, [gap]), 1)
            group.written = upto

    def _flush_later(self) -> None:
        if not self._flush_due:
            self._flush_due = True
            if self._loop is None:
                self._loop = asyncio.get_running_loop()  # cached: each lookup calls getpid
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        self._flush_due = False
        self._flush_dirty()
        if self._registered_at:
            now, observe = self._clock(), self._stats.publish_to_deliver.observe
            for registered_at, count in self._registered_at.items():
                observe(max(0.0, now - registered_at), count)
            self._registered_at.clear()

    def _flush_dirty(self) -> None:
        dirty, self._dirty = self._dirty, []
        for group in dirty:
            self._flush_group(group)

    def _flush_group(self, group: Group) -> None:
        messages = group.pending
        if not messages:
            return
        group.pending = []
        if group.slow:
            group.slow = False
            self._send_apart(group, group.writers.items(), messages)
        else:
            self._send(group, group.writers.items(), messages)

    def _write_excluding(self, group: Group, message: Deliverable) -> None:
        self._flush_group(group)
        writers = [entry for entry in group.writers.items() if message.exclude_socket not in entry[0].names]
        send = self._send_apart if group.slow else self._send
        send(group, writers, [message])

    def _send_apart(self, group: Group, writers: Collection[tuple[Listener, Write]], messages: Sequence[Deliverable]) -> None:
        """Write messages that may be dropped apart from the others."""
        for expendable, some in groupby(messages, attrgetter("expendable")):
            group.expendable = expendable
            self._send(group, writers, list(some))
        group.expendable = False

    def _send(self, group: Group, writers: Collection[tuple[Listener, Write]], messages: list[Deliverable]) -> None:
        try:
            blob = group.codec.batch(group.head, messages)
        except Exception:
            messages, blob = self._deliverable(group, messages)
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
        self._stats.deliveries += count * len(writers)
        self._stats.delivered_bytes += size * len(writers)
