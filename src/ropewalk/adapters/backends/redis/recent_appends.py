"""The streams to which this node has appended lately, for a server that came back without its newest writes.

Invariant: a group of appends is noted before it is sent, so that above `since` nothing is missing that this node
may have registered.
"""

from collections import deque
from collections.abc import Iterable
from math import inf

from msgspec.msgpack import encode

MAX_STREAMS = 10_000
"""Names in all groups. Older groups are dropped: a server that has lost more begins new epochs for all streams."""


class AppendGroup:
    """Appends that one script registers. `end`: the shard's counter after it; infinite while that is not known."""

    __slots__ = ("count", "end", "streams")

    def __init__(self, streams: Iterable[str], count: int) -> None:
        self.streams = tuple(streams)
        self.count = count
        self.end = inf


class RecentAppends:
    """The groups of one shard, oldest first. `since`: the counter up to which groups may be missing."""

    def __init__(self) -> None:
        self._groups: deque[AppendGroup] = deque()
        self._names = 0
        self._since = inf
        self._newest = 0

    def start(self, counter: int) -> None:
        """The shard had come this far before this process began: an earlier one under the same name may have appended."""
        self._since = counter

    def begin(self, streams: Iterable[str], count: int) -> AppendGroup:
        """`count`: how many messages it may register."""
        group = AppendGroup(streams, count)
        self._groups.append(group)
        self._names += len(group.streams)
        while self._names > MAX_STREAMS:
            dropped = self._groups.popleft()
            self._names -= len(dropped.streams)
            self._since = max(self._since, self._newest if dropped.end == inf else dropped.end)
        return group

    def answered(self, group: AppendGroup, counter: int) -> None:
        group.end = self._newest = counter

    def testimony(self, counter: int) -> bytes:
        """Whether all groups above a counter are known, how many messages they have at most, and their streams."""
        groups = [group for group in self._groups if group.end > counter]
        streams = {stream for group in groups for stream in group.streams}
        return encode((int(self._since <= counter), sum(group.count for group in groups), sorted(streams)))
