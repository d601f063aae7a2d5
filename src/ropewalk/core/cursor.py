"""The cursor of a stream: the last position that was delivered in this process.

Invariant: offsets of one epoch are delivered in order, each once. A message that does not follow is classified, and the caller
drops it or first reads the missing messages from the store.
"""

from enum import Enum, auto

from ropewalk.model.messages import Position

MAX_FORMER_EPOCHS = 4
"""Former epochs that are still recognised: their messages may arrive late."""


class Step(Enum):
    """How a message relates to the last delivered one."""

    NEXT = auto()  # it follows; the cursor has moved to it
    OLD = auto()  # it was delivered already, or belongs to a former epoch
    JUMP = auto()  # messages between are missing
    NEW_EPOCH = auto()  # the stream may have restarted


class Cursor:
    """Starts in no epoch, at offset 0. A stream without an epoch has never been published to."""

    __slots__ = ("_former", "epoch", "must_read", "offset")

    def __init__(self, epoch: str = "", offset: int = 0) -> None:
        self.epoch = epoch
        self.offset = offset
        self._former: tuple[str, ...] = ()
        self.must_read = False
        """The store had no record of the stream: further messages of it must be read from the store."""

    @property
    def position(self) -> Position:
        return Position(self.epoch, self.offset)

    def take(self, epoch: str, offset: int) -> Step:
        """Advance if this is the next message. `offset` is at least 1."""
        if epoch == self.epoch:
            if offset == self.offset + 1 and not self.must_read:
                self.offset = offset
                return Step.NEXT
            return Step.OLD if offset <= self.offset else Step.JUMP
        if epoch in self._former:
            return Step.OLD
        if self.epoch:
            return Step.NEW_EPOCH
        self.epoch = epoch
        if offset == 1:
            self.offset = 1
            return Step.NEXT
        return Step.JUMP

    def behind(self, position: Position) -> bool:
        """True if the cursor has not reached this position of the store."""
        if position.epoch == self.epoch:
            return position.offset > self.offset
        return bool(position.epoch) and position.epoch not in self._former

    def is_over(self, epoch: str) -> bool:
        return epoch in self._former

    def move(self, epoch: str, offset: int) -> bool:
        """Move to the store's position. Returns False for a former epoch; never goes back within an epoch."""
        if epoch == self.epoch:
            self.offset = max(self.offset, offset)
            return True
        if not epoch or epoch in self._former:
            return False
        if self.epoch:
            self._former = (*self._former, self.epoch)[-MAX_FORMER_EPOCHS:]
        self.epoch, self.offset, self.must_read = epoch, offset, False
        return True
