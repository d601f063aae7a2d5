"""The epoch, tip and hot history of one stream, bounded by number and by age.

Invariant: offsets are 1, 2, 3 … and are never assigned twice. An answer follows the requested position or is a `Gap`.
"""

from collections import deque
from collections.abc import Iterator
from itertools import islice
from math import inf

from ropewalk.model.history import MAX_ANSWER_MESSAGES, Gap, GapReason, HistoryPage, Replay, StreamSummary, limit_answer
from ropewalk.model.messages import Position, Publication, Registered, message_fields
from ropewalk.model.rules import StreamRules
from ropewalk.model.shards import StreamContent


class HistoryTotals:
    """Kept messages and payload bytes of all logs together, for gauges."""

    __slots__ = ("bytes", "messages")

    def __init__(self) -> None:
        self.messages = 0
        self.bytes = 0


class StreamLog:
    """The positions of one stream in one epoch, and the tail of its messages.

    A message is kept while fewer than `history_limit` newer ones exist and it is younger than `history_ttl`. The tip outlives
    the messages: a client that has all of them gets an empty answer, not a gap, after they have expired. `trimmed_at` is the
    time of the newest message that is no longer kept: it shows whether a request by time misses messages. `partition_key` is
    "" if it is the stream's name.
    """

    __slots__ = ("_entries", "_kept", "_limit", "_ttl", "epoch", "newest", "partition_key", "stream", "tip", "trimmed_at")

    def __init__(self, stream: str, epoch: str, rules: StreamRules, kept: HistoryTotals) -> None:
        self.stream = stream
        self.epoch = epoch
        self.partition_key = ""
        self.tip = 0
        self.newest = 0.0  # the time of the newest message, kept or not
        self.trimmed_at = -inf
        self._kept = kept
        self._entries: deque[Registered] = deque()
        self.apply_rules(rules)

    def apply_rules(self, rules: StreamRules) -> None:
        """Apply the rules. Messages that are too old by them are removed at the next `trim`."""
        self._limit = rules.history_limit if rules.history_ttl > 0 else 0
        self._ttl = rules.history_ttl
        while len(self._entries) > self._limit:
            self._drop_oldest()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def oldest(self) -> int:
        """The first kept offset; tip + 1 if none is kept."""
        return self.tip + 1 - len(self._entries)

    @property
    def trim_at(self) -> float | None:
        """When the oldest kept message expires; None if none is kept."""
        return self._entries[0].timestamp + self._ttl if self._entries else None

    def append(self, publication: Publication, now: float) -> Registered:
        # Timestamps must not fall, even if the clock does: `since` and the TTL rely on their order.
        if now > self.newest:
            self.newest = now
        self.tip += 1
        uid, time, key = publication.uid, publication.ts_producer, self.partition_key
        registered = Registered(
            publication.stream,
            publication.payload,
            self.newest,
            self.epoch,
            self.tip,
            publication.exclude_socket,
            publication.broadcast_type,
            message_fields(uid, time, key) if uid or time or key else None,  # most messages need no call
        )
        if self._limit > 0:
            self._keep(registered)
        else:
            self.trimmed_at = self.newest
        return registered

    def insert(self, registered: Registered) -> None:
        """Keep a message that already has its offset in this epoch: planned in a batch, or recovered after a restart."""
        if registered.offset != self.tip + 1:
            # Recovered: the time of the message before it is unknown, but not later. A node that gets a stream back continues
            # with the other node's messages.
            self.trim(inf)
            self.trimmed_at = registered.timestamp if registered.offset > 1 else -inf
        self.tip = registered.offset
        self.newest = registered.timestamp
        if self._limit > 0:
            self._keep(registered)
        else:
            self.trimmed_at = self.newest

    def advance_tip(self, tip: int, timestamp: float) -> None:
        """Set the tip as of before a restart, without its messages."""
        self.tip, self.newest, self.trimmed_at = tip, timestamp, timestamp

    def content(self) -> StreamContent:
        """The complete log, for another store."""
        messages = tuple(self._entries)
        return StreamContent(self.stream, self.epoch, self.tip, self.newest, self.trimmed_at, self.partition_key, messages)

    def restore(self, content: StreamContent, rules: StreamRules) -> None:
        """Take over the content from another store, as far as the rules keep it. The log must be new."""
        self.tip, self.newest, self.trimmed_at = content.tip, content.newest, content.trimmed_at
        self._entries.extend(content.messages)
        self._kept.messages += len(self._entries)
        self._kept.bytes += sum(len(entry.payload) for entry in self._entries)
        self.apply_rules(rules)

    def _keep(self, registered: Registered) -> None:
        if len(self._entries) >= self._limit:
            self._drop_oldest()
        self._entries.append(registered)
        self._kept.messages += 1
        self._kept.bytes += len(registered.payload)

    def _drop_oldest(self) -> None:
        dropped = self._entries.popleft()
        self.trimmed_at = dropped.timestamp
        self._kept.messages -= 1
        self._kept.bytes -= len(dropped.payload)

    def trim(self, now: float) -> None:
        """Remove expired messages. Every read does so first: expired messages are never returned."""
        while self._entries and self._entries[0].timestamp + self._ttl <= now:
            self._drop_oldest()

    def after(self, position: Position, now: float) -> Replay | Gap:
        """The messages after `position`. Offset 0 without an epoch is the beginning of the current epoch."""
        self.trim(now)
        if position.epoch != self.epoch and position != BEFORE_ALL:
            return self._gap(GapReason.EPOCH_CHANGED)
        if position.offset > self.tip:
            return Gap(self.stream, GapReason.AHEAD, self.epoch, self.oldest, self.tip)
        if position.offset < self.oldest - 1:
            return self._gap(GapReason.TRIMMED)
        return self._replay(self.tip - position.offset)

    def since(self, timestamp: float, now: float) -> Replay | Gap:
        """The messages registered at or after `timestamp`. If some are no longer kept: TRIMMED, followed by the kept ones."""
        self.trim(now)
        if self.trimmed_at >= timestamp:
            return self._gap(GapReason.TRIMMED)
        count = 0
        for entry in reversed(self._entries):
            if entry.timestamp < timestamp:
                break
            count += 1
        return self._replay(count)

    def page(self, after: int, limit: int, now: float) -> HistoryPage:
        """Returns at most `limit` kept messages with offsets above `after`, up to the size of one answer."""
        self.trim(now)
        skip = min(max(0, after + 1 - self.oldest), len(self._entries))
        messages, _ = limit_answer(self._slice(skip, limit))
        more = bool(messages) and messages[-1].offset < self.tip
        next_offset = messages[-1].offset if more else None
        return HistoryPage(self.stream, self.epoch, self.tip, self.oldest, messages, next_offset)

    def summary(self, now: float) -> StreamSummary:
        self.trim(now)
        return StreamSummary(self.stream, self.epoch, self.tip, self.oldest, len(self._entries))

    def _gap(self, reason: GapReason) -> Gap:
        """A gap before all kept messages."""
        rest = self._replay(len(self._entries)) if self._entries else None
        return Gap(self.stream, reason, self.epoch, self.oldest, self.tip, rest=rest)

    def _replay(self, count: int) -> Replay:
        messages, more = limit_answer(self._slice(len(self._entries) - count, count))
        return Replay(self.stream, self.epoch, self.tip, messages, more)

    def _slice(self, begin: int, count: int) -> Iterator[Registered]:
        """Messages from an index on: as many as an answer may hold and one more. Counted from the nearer end: a deque is a list
        of blocks."""
        end = min(begin + min(count, MAX_ANSWER_MESSAGES), len(self._entries))
        if begin <= len(self._entries) - end:
            return islice(self._entries, begin, end)
        newest_first = islice(reversed(self._entries), len(self._entries) - end, len(self._entries) - begin)
        return reversed(list(newest_first))


BEFORE_ALL = Position("", 0)
