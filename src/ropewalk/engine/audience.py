"""Who listens to a stream in this process: groups of links, and joins in progress."""

import asyncio
from collections.abc import Callable
from typing import NamedTuple, Protocol

from ropewalk.core.cursor import Cursor
from ropewalk.model.history import MESSAGE_OVERHEAD_BYTES, Gap
from ropewalk.model.messages import Deliverable, Position, Registered
from ropewalk.protocol.codec import MessageCodec

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


class QueuedGap(NamedTuple):
    """A gap for all listeners: the messages above `after`, up to the end of the gap, are missing."""

    gap: Gap
    after: Position


GroupKey = tuple[str, MessageCodec]


class Group:
    """Listeners of one stream who get the same bytes: same identifier, same codec. A large audience has several such groups, so
    that it can be written in slices.

    `pending`: what is not written yet. `queued`: the hub is about to write it. `divided`: the audience has several such groups.
    During a write, `newest` is the position of the last message in it, and `written` that of the last message before it.
    `apart`: the next write separates gaps, messages that may be dropped, and those that exclude a listener. Slow listeners set
    it too. Every write clears it. `expendable` is True while messages are written that may be dropped.

    `size`: bytes of the pending messages, without the first.

    `registered`: the times of messages that all listeners of the stream have once this group has them, with their numbers.
    """

    __slots__ = (
        "apart",
        "codec",
        "divided",
        "expendable",
        "head",
        "identifier",
        "newest",
        "on_empty",
        "pending",
        "queued",
        "registered",
        "size",
        "stream",
        "writers",
        "written",
    )

    def __init__(
        self, stream: str, identifier: str, codec: MessageCodec, on_empty: "Callable[[Group], None] | None" = None
    ) -> None:
        """`on_empty` is called when the last listener leaves. Set for prefix groups only."""
        self.stream = stream
        self.identifier = identifier
        self.codec = codec
        self.head = codec.head(identifier)
        self.writers: dict[Listener, Write] = {}
        self.pending: list[Deliverable | QueuedGap] = []
        self.size = 0
        self.queued = False
        self.divided = False
        self.apart = False
        self.expendable = False
        self.newest = self.written = Position("", 0)
        self.registered: dict[float, int] | None = None
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
    it buffers messages until `engine/feed.py` has read the missing ones. `slowest`: the group that is written after all others.
    """

    __slots__ = ("_full", "_open", "buffers", "cursor", "groups", "slowest", "stream", "waiting")

    def __init__(self, stream: str) -> None:
        self.stream = stream
        self.groups: dict[Group, None] = {}
        self._open: dict[GroupKey, Group] = {}  # those that listeners join
        self._full: dict[GroupKey, list[Group]] | None = None  # further ones, full or half empty
        self.slowest: Group | None = None
        self.buffers: set[JoinBuffer] = set()
        self.cursor = Cursor()
        self.waiting: Backlog | None = None

    def group(self, identifier: str, codec: MessageCodec, limit: int, on_empty: Callable[[Group], None] | None = None) -> Group:
        """The group for the next listener. `limit`: the number of listeners in one group."""
        key = identifier, codec
        group = self._open.get(key)
        if group is not None and len(group.writers) < limit:
            return group
        another = None if group is None else self._put_aside(key, group, limit // 2)
        if another is None:
            another = Group(self.stream, identifier, codec, on_empty)
            another.newest = another.written = self.cursor.position
            another.divided = group is not None
            self.groups[another] = None
        self._open[key] = another
        return another

    def _put_aside(self, key: GroupKey, group: Group, limit: int) -> Group | None:
        """The group is full. Returns one with at most `limit` listeners left, if there is one."""
        group.divided = True
        if self._full is None:
            self._full = {}
        others = self._full.setdefault(key, [])
        roomy = next((index for index, other in enumerate(others) if len(other.writers) <= limit), None)
        found = None if roomy is None else others.pop(roomy)
        others.append(group)
        return found

    def remove(self, group: Group) -> None:
        """Its last listener has left."""
        self.groups.pop(group, None)
        if self.slowest is group:
            self.slowest = None
        key = group.identifier, group.codec
        others = self._full.get(key) if self._full else None
        if self._open.get(key) is group:
            if others:
                self._open[key] = others.pop()
            else:
                del self._open[key]
        elif others and group in others:
            others.remove(group)
        if self._full and not others:
            self._full.pop(key, None)
