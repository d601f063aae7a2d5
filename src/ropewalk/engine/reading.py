"""The history of one stream that a client gets, one answer of the store after another.

Invariant: it ends at the tip that the stream had when it was asked for. If the stream begins a new epoch meanwhile, the gap is
in its place, and it ends at the tip that the new epoch had then.
"""

from msgspec.structs import replace

from ropewalk.core.delivered import Delivered
from ropewalk.engine.subscription import Steps, Subscription, with_sent
from ropewalk.model.history import Gap, GapReason, Replay, last_offset, memory_bytes, split_at_gaps, truncate_answer
from ropewalk.model.messages import Position

HistoryAnswer = Replay | Gap


class Reading:
    """`answer` is the last one, and `pieces` what the client gets of it. `delivered`: what the client was sent then. `more`
    follows `reached`.

    `archived`: messages of the archive that the client gets without asking again; what follows them is a PARTIAL gap.
    """

    __slots__ = ("_archived", "answer", "delivered", "more", "pieces", "reached", "stream")

    def __init__(self, answer: HistoryAnswer, archived: int) -> None:
        self.stream = answer.stream
        self._archived = archived
        self.delivered = Delivered(answer.epoch, answer.tip + 1)
        self._set(answer)

    @property
    def tip(self) -> Position:
        return Position(self.answer.epoch, self.answer.tip)

    @property
    def size(self) -> int:
        """Bytes of the last answer."""
        return sum(memory_bytes(piece.messages) for piece in self.pieces)

    def take(self, answer: HistoryAnswer) -> None:
        if answer.epoch == self.answer.epoch:
            answer = truncate_answer(answer, self.answer.tip)
        else:
            self.delivered = Delivered(answer.epoch, answer.tip + 1)
        self._set(answer)

    def _set(self, answer: HistoryAnswer) -> None:
        self.answer = answer
        self.pieces = split_at_gaps(answer)
        self.reached = Position(answer.epoch, last_offset(answer))
        self.more = self.reached.offset < answer.tip
        last = self.pieces[-1]
        if isinstance(last, Gap) and last.reason is GapReason.PARTIAL:
            self._count_archived(last)
        if isinstance(answer, Gap) or answer.messages:
            self.delivered = with_sent(self.delivered, self.pieces)

    def _count_archived(self, last: Gap) -> None:
        messages = last.messages[: self._archived]
        self._archived -= len(messages)
        self.more = self._archived > 0
        if self.more:
            self.pieces[-1] = Replay(last.stream, last.epoch, last.tip, messages)
        else:
            self.pieces[-1] = replace(last, oldest=messages[-1].offset + 1, messages=messages)

    def settle(self, subscription: Subscription) -> Steps:
        """As `Subscription.settle`. What comes live, or is not known any more, need not be read."""
        pieces = subscription.settle(self.pieces)
        known = subscription.delivered_of(self.stream)
        if known is None or self.reached.offset + 1 >= known.live_from:
            self.more = False
        elif known.horizon > self.reached.offset:
            self.reached = Position(self.reached.epoch, known.horizon)
        return pieces
