"""What waits for one slow connection, bounded by bytes.

The rule it keeps: frames leave in the order they came, and whatever is skipped is said right before the frame that follows it.
"""

from collections import deque
from collections.abc import Hashable

from msgspec import Struct

from ropewalk.model.rules import SlowPolicy

SLACK = 32
"""Places of dropped frames that are tolerated in the line, beyond as many as there are live ones."""


class Skipped(Struct, frozen=True):
    """Frames of `key` that waited before this point were dropped; the next one taken is of that key, offered with `mark`."""

    key: Hashable
    mark: object = None


class _Slot:
    """A place in the line. A dropped frame leaves its slot behind, empty."""

    __slots__ = ("frame", "key", "mark", "skipped")

    def __init__(self, frame: bytes, key: Hashable, mark: object, skipped: bool) -> None:
        self.frame: bytes | None = frame
        self.key = key
        self.mark = mark
        self.skipped = skipped


class Outbox:
    """Frames in line. Those that may be dropped are also in a lane of their key, so that dropping does not search the line.

    When a frame does not fit, its own lane is dropped first. If that is not enough, or the frame has no lane, the other lanes
    are cut down to their newest frame: a stream that may skip must not get the connection closed by another one, or by a ping.
    """

    __slots__ = ("_empty", "_lanes", "_limit", "_line", "dropped", "size")

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._line: deque[_Slot] = deque()
        self._lanes: dict[Hashable, deque[_Slot]] = {}
        self._empty = 0
        self.size = 0
        self.dropped = 0

    def __bool__(self) -> bool:
        return len(self._line) > self._empty

    def offer(self, key: Hashable, frame: bytes, policy: SlowPolicy, mark: object = None) -> bool:
        """False: it is full, the frame was not taken, and the connection must be closed. Nothing is dropped in vain."""
        droppable = policy is SlowPolicy.DROP
        skipped = False
        if self.size + len(frame) > self._limit:
            own = self._lanes.get(key) if droppable else None
            if not self._make_room(len(frame), own):
                return False
            skipped = own is not None
        slot = _Slot(frame, key, mark, skipped)
        self._line.append(slot)
        self.size += len(frame)
        if droppable:
            self._lanes.setdefault(key, deque()).append(slot)
        return True

    def take(self, budget_bytes: int) -> list[bytes | Skipped]:
        """Frames from the front, while they fit the budget. The first always does, or a large one would wait forever."""
        answer: list[bytes | Skipped] = []
        while self._line:
            slot = self._line[0]
            if slot.frame is None:
                self._empty -= 1
            elif answer and len(slot.frame) > budget_bytes:
                break
            else:
                if slot.skipped:
                    answer.append(Skipped(slot.key, slot.mark))
                answer.append(slot.frame)
                budget_bytes -= len(slot.frame)
                self._leave(slot, len(slot.frame))
            self._line.popleft()
        return answer

    def _leave(self, slot: _Slot, size: int) -> None:
        self.size -= size
        lane = self._lanes.get(slot.key)
        if lane and lane[0] is slot:
            lane.popleft()
            if not lane:
                del self._lanes[slot.key]

    def _make_room(self, wanted: int, own: deque[_Slot] | None) -> bool:
        """Drop what it takes for `wanted` bytes to fit; if all that may be dropped is not enough, drop nothing."""
        missing = self.size + wanted - self._limit
        cuts: list[deque[_Slot]] = []
        if own is not None:
            missing -= _bytes(own)
        for lane in self._lanes.values():
            if missing <= 0:
                break
            if lane is not own and len(lane) > 1:
                cuts.append(lane)
                missing -= _bytes(lane) - len(lane[-1].frame or b"")
        if missing > 0:
            return False
        if own is not None:
            self._drop(own, keep=0)
        for lane in cuts:
            self._drop(lane, keep=1)
            lane[0].skipped = True
        self._compact()
        return True

    def _drop(self, lane: deque[_Slot], keep: int) -> None:
        while len(lane) > keep:
            slot = lane.popleft()
            self.size -= len(slot.frame or b"")
            slot.frame = None
            self._empty += 1
            self.dropped += 1

    def _compact(self) -> None:
        if 2 * self._empty > len(self._line) + SLACK:
            self._line = deque(slot for slot in self._line if slot.frame is not None)
            self._empty = 0


def _bytes(lane: deque[_Slot]) -> int:
    return sum(len(slot.frame or b"") for slot in lane)
