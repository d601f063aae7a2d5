"""The bounded buffer of one slow connection.

Invariant: frames are sent in order, and a skip is reported right before the frame that follows it.
"""

from collections import deque
from collections.abc import Collection, Hashable

from msgspec import Struct

from ropewalk.model.rules import SlowPolicy

MAX_EMPTY_SLOTS = 32
"""Slots of dropped frames in the line before it is compacted, in addition to the number of live ones."""


class Skipped(Struct, frozen=True):
    """Frames of `key` between the marks `after` and `upto` were dropped here."""

    key: Hashable
    after: object = None
    upto: object = None


class _Slot:
    """A place in the line. `before` and `after` are the marks around its frame.

    `skipped`: frames of its key were dropped between the mark `since` and this frame. A dropped frame leaves an empty slot
    (None). A frame that was never accepted leaves a slot with zero bytes, as a notice.
    """

    __slots__ = ("after", "before", "frame", "key", "since", "skipped")

    def __init__(self, frame: bytes, key: Hashable, before: object, after: object) -> None:
        self.frame: bytes | None = frame
        self.key = key
        self.before = before
        self.after = after
        self.since = before
        self.skipped = False

    def skip_from(self, since: object) -> None:
        self.since = since
        self.skipped = True


class Outbox:
    """Pending frames in line. Droppable ones are also in a lane of their key, so that dropping does not search the line.

    If a frame does not fit, its own lane is dropped first. If that is not enough, or the frame has no lane, the other lanes are
    cut down to their newest frame: a stream that may skip must not cause a disconnect because of another stream or a ping. If
    there is still no room, a droppable frame is dropped itself, and the frames before it stay. For other frames the newest
    frames of the lanes are dropped too.
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

    def offer(self, key: Hashable, frame: bytes, policy: SlowPolicy, before: object = None, after: object = None) -> bool:
        """Returns False if the outbox is full and the frame was not accepted: close the connection. A droppable frame always
        returns True.

        `before` and `after` are the marks of this key before and after the frame. Frames are only dropped if that makes enough
        room.
        """
        droppable = policy is SlowPolicy.DROP
        slot = _Slot(frame, key, before, after)
        if self.size + len(frame) > self._limit:
            own = self._lanes.get(key) if droppable else None
            since = own[0].since if own else None
            if not self._make_room(len(frame), own, keep_newest=droppable):
                return droppable and self._refuse(slot)
            if own is not None:
                slot.skip_from(since)
        self._append(slot, droppable)
        return True

    def _append(self, slot: _Slot, droppable: bool) -> None:
        self._line.append(slot)
        self.size += len(slot.frame or b"")
        if droppable:
            self._lanes.setdefault(slot.key, deque()).append(slot)

    def _refuse(self, slot: _Slot) -> bool:
        """Drop the frame itself and leave a notice in the line. Consecutive dropped frames share one notice."""
        self.dropped += 1
        lane = self._lanes.get(slot.key)
        if lane and lane[-1].frame == b"":
            lane[-1].after = slot.after
        else:
            slot.frame = b""
            slot.skip_from(slot.before)
            self._append(slot, droppable=True)
        return True

    def take(self, budget_bytes: int) -> list[bytes | Skipped]:
        """Frames from the front that fit the budget, and at least one, so that a large frame is sent too."""
        answer: list[bytes | Skipped] = []
        while self._line:
            slot = self._line[0]
            if slot.frame is None:
                self._empty -= 1
            elif answer and len(slot.frame) > budget_bytes:
                break
            else:
                if slot.skipped:
                    answer.append(Skipped(slot.key, slot.since, slot.before if slot.frame else slot.after))
                if slot.frame:
                    answer.append(slot.frame)
                budget_bytes -= len(slot.frame)
                self._leave(slot, len(slot.frame))
            self._line.popleft()
        return answer

    def discard(self, keys: Collection[Hashable]) -> None:
        """Discard the pending frames of these keys, without a notice."""
        for slot in self._line:
            if slot.frame is not None and slot.key in keys:
                self.size -= len(slot.frame)
                slot.frame = None
                self._empty += 1
        for key in keys:
            self._lanes.pop(key, None)
        self._compact()

    def _leave(self, slot: _Slot, size: int) -> None:
        self.size -= size
        lane = self._lanes.get(slot.key)
        if lane and lane[0] is slot:
            lane.popleft()
            if not lane:
                del self._lanes[slot.key]

    def _make_room(self, wanted: int, own: deque[_Slot] | None, keep_newest: bool) -> bool:
        """Drop enough frames for `wanted` bytes to fit; if all droppable ones are not enough, drop nothing."""
        missing = self.size + wanted - self._limit
        cuts: list[deque[_Slot]] = []
        emptied: list[deque[_Slot]] = []
        others = [lane for lane in self._lanes.values() if lane is not own]
        if own is not None:
            missing -= _bytes(own)
        for lane in others:
            if missing > 0 and len(lane) > 1:
                cuts.append(lane)
                missing -= _bytes(lane) - len(lane[-1].frame or b"")
        for lane in () if keep_newest else others:
            if missing > 0 and lane[-1].frame:
                emptied.append(lane)
                missing -= len(lane[-1].frame)
        if missing > 0:
            return False
        if own is not None:
            self._drop(own, keep=0)
        for lane in cuts:
            self._cut(lane)
        for lane in emptied:
            self._empty_slot(lane[-1])
        self._compact()
        return True

    def _cut(self, lane: deque[_Slot]) -> None:
        """Keep the newest frame of a lane, with a notice of the others before it."""
        since = lane[0].since
        self._drop(lane, keep=1)
        lane[0].skip_from(since)

    def _empty_slot(self, slot: _Slot) -> None:
        """Drop the frame of a slot and leave a notice in its place."""
        self.dropped += 1
        self.size -= len(slot.frame or b"")
        slot.frame = b""
        slot.skip_from(slot.since)

    def _drop(self, lane: deque[_Slot], keep: int) -> None:
        while len(lane) > keep:
            slot = lane.popleft()
            self.dropped += bool(slot.frame)  # a notice was counted before
            self.size -= len(slot.frame or b"")
            slot.frame = None
            self._empty += 1

    def _compact(self) -> None:
        if 2 * self._empty > len(self._line) + MAX_EMPTY_SLOTS:
            self._line = deque(slot for slot in self._line if slot.frame is not None)
            self._empty = 0


def _bytes(lane: deque[_Slot]) -> int:
    return sum(len(slot.frame or b"") for slot in lane)
