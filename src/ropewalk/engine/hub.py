"""The hub: which sessions stream from what, and the fan-out. One rule: a message is encoded once per (identifier, codec).

Deliveries of one tick are collected per group and written once per connection at the tick's end. The fast path has no test
per delivery: a slow connection has put another `write` in its place.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from ropewalk.core.stats import Stats
from ropewalk.model.messages import Position, Registered
from ropewalk.ports import Clock
from ropewalk.protocol.codec import Codec

logger = logging.getLogger("ropewalk.engine")

Write = Callable[[bytes], None]


class Listener(Protocol):
    """Who listens: its names are the sids that `exclude_socket` may mean; it puts its own writer into the group it joins."""

    names: tuple[str, ...]

    def attach(self, group: "Group") -> None: ...
    def detach(self, group: "Group") -> None: ...


class Group:
    """The listeners of one stream who get the same bytes: same identifier, same codec.

    `newest` and `written` are positions: of what was delivered, and of what was written before the frames written now. While
    they are written, `newest` is the position of the last of them.
    """

    __slots__ = ("codec", "head", "identifier", "newest", "pending", "stream", "writers", "written")

    def __init__(self, stream: str, identifier: str, codec: Codec) -> None:
        self.stream = stream
        self.identifier = identifier
        self.codec = codec
        self.head = codec.head(identifier)
        self.writers: dict[Listener, Write] = {}
        self.pending: list[bytes] = []
        self.newest = self.written = Position("", 0)


class Catch:
    """What comes to a stream while a join is under way. Past its bound it keeps nothing and is `full`.

    `last` is the newest message with a position that came, kept or not; `taken` the newest that was handed on.
    """

    __slots__ = ("_room", "full", "last", "messages", "taken")

    def __init__(self, limit: int) -> None:
        self._room = limit
        self.full = False
        self.last: Registered | None = None
        self.taken: Registered | None = None
        self.messages: list[Registered] = []

    def add(self, message: Registered) -> None:
        if message.offset:
            self.last = message
        self._room -= len(message.payload)
        self.full = self._room < 0
        if self.full:
            self.messages.clear()
        else:
            self.messages.append(message)

    def take(self) -> list[Registered]:
        taken, self.messages = self.messages, []
        self._room += sum(len(message.payload) for message in taken)
        if taken:
            self.taken = self.last
        return taken


class Hub:
    """Joins and leaves flush what is pending first, so that a listener gets nothing from before it joined."""

    def __init__(self, stats: Stats, clock: Clock) -> None:
        self._stats = stats
        self._clock = clock
        self._streams: dict[str, dict[tuple[str, Codec], Group]] = {}
        self._catches: dict[str, set[Catch]] = {}
        self._dirty: list[Group] = []
        self._registered_at: list[float] = []
        self._flush_due = False

    def streams(self) -> int:
        return len(self._streams)

    def join(self, stream: str, identifier: str, codec: Codec, listener: Listener) -> Group:
        groups = self._streams.setdefault(stream, {})
        group = groups.get((identifier, codec))
        if group is None:
            group = groups[identifier, codec] = Group(stream, identifier, codec)
        self._flush_group(group)
        listener.attach(group)
        return group

    def leave(self, group: Group, listener: Listener) -> None:
        self._flush_group(group)
        listener.detach(group)
        group.writers.pop(listener, None)
        if not group.writers:
            groups = self._streams.get(group.stream, {})
            groups.pop((group.identifier, group.codec), None)
            if not groups:
                self._streams.pop(group.stream, None)

    def collect(self, stream: str, limit: int) -> Catch:
        """What is delivered on `stream` from now until `release`, in order: for a join that must wait."""
        catch = Catch(limit)
        self._catches.setdefault(stream, set()).add(catch)
        return catch

    def release(self, stream: str, catch: Catch) -> None:
        self._catches[stream].remove(catch)
        if not self._catches[stream]:
            del self._catches[stream]

    def deliver(self, messages: Sequence[Registered]) -> None:
        """Hand messages to everyone who listens, in order; they leave at the end of this tick."""
        if not self._flush_due:
            self._flush_due = True
            asyncio.get_running_loop().call_soon(self.flush)
        for message in messages:
            for catch in self._catches.get(message.stream, ()):
                catch.add(message)
            groups = self._streams.get(message.stream)
            if not groups:
                continue
            self._registered_at.append(message.timestamp)
            for group in groups.values():
                if message.exclude_socket:
                    self._write_excluding(group, message)
                    continue
                if not group.pending:
                    self._dirty.append(group)
                group.pending.append(group.codec.message(group.head, message))
                if message.offset:
                    group.newest = Position(message.epoch, message.offset)

    def flush(self) -> None:
        self._flush_due = False
        dirty, self._dirty = self._dirty, []
        for group in dirty:
            self._flush_group(group)
        if self._registered_at:
            now, observe = self._clock(), self._stats.publish_to_deliver.observe
            for registered_at in self._registered_at:
                observe(max(0.0, now - registered_at))
            self._registered_at.clear()

    def _flush_group(self, group: Group) -> None:
        frames = group.pending
        if not frames:
            return
        group.pending = []
        blob = frames[0] if len(frames) == 1 else b"".join(frames)
        self._write(group.writers.values(), blob, len(frames))
        group.written = group.newest

    def _write_excluding(self, group: Group, message: Registered) -> None:
        self._flush_group(group)
        writers = [write for listener, write in group.writers.items() if message.exclude_socket not in listener.names]
        if message.offset:
            group.newest = Position(message.epoch, message.offset)
        self._write(writers, group.codec.message(group.head, message), 1)
        group.written = group.newest

    def _write(self, writers: Collection[Write], blob: bytes, count: int) -> None:
        for write in writers:
            try:
                write(blob)
            except Exception:  # one broken link must not cost the others their message
                logger.exception("delivery failed")
        size = len(writers)
        self._stats.deliveries += count * size
        self._stats.delivered_bytes += len(blob) * size
