"""History requests and their two kinds of answer: a `Replay` without holes, or a `Gap` with a reason."""

from collections.abc import Collection, Iterable
from enum import StrEnum
from operator import attrgetter

from msgspec import Struct
from msgspec.structs import replace

from ropewalk.model.messages import Position, Registered

MAX_ANSWER_BYTES = 256 * 1024
"""Of messages in one answer of a store. It holds at least one message."""

MESSAGE_OVERHEAD_BYTES = 200
"""What a message in memory takes besides its payload, roughly."""

MAX_ANSWER_MESSAGES = MAX_ANSWER_BYTES // MESSAGE_OVERHEAD_BYTES + 1

_payload = attrgetter("payload")

Tip = tuple[str, Position]
"""A stream and its last position."""


class GapReason(StrEnum):
    """Why messages of a stream cannot be delivered. Sent to clients as `reason` of `reject_history`."""

    TRIMMED = "trimmed"  # the requested offset is no longer kept
    PARTIAL = "partial"  # the answer reached its limit; the rest can be requested
    EPOCH_CHANGED = "epoch_changed"  # the stream's past was lost and its offsets restarted
    AHEAD = "ahead"  # the client has an offset that was never assigned in this epoch
    UNCLAIMED = "unclaimed"  # a restored session did not request its history within the resume timeout
    DROPPED = "dropped"  # the connection was too slow, and its stream's rule skips to the newest


class HistoryRequest(Struct, frozen=True):
    """`streams` are the client's positions; `since` (UNIX seconds) applies to streams without one."""

    since: float | None = None
    streams: dict[str, Position] = {}


class Replay(Struct, frozen=True):
    """The messages after the requested position, up to `tip`, without a hole. Live delivery continues at `epoch` and `tip`.

    `more`: the answer reached `MAX_ANSWER_BYTES`. Request the rest from its last message.
    """

    stream: str
    epoch: str
    tip: int
    messages: tuple[Registered, ...] = ()
    more: bool = False


class Gap(Struct, frozen=True):
    """Messages are missing after the requested position.

    Without an epoch it has no position, and `oldest` and `tip` have no meaning: either the store does not know the stream
    (EPOCH_CHANGED, UNCLAIMED), or messages without a position may be missing (TRIMMED, DROPPED). The client keeps its
    position: the answer to a request from there reports whether messages are missing.

    Args:
        oldest: the first offset that is kept after the gap; tip + 1 if there is none.
        messages: between the requested position and the gap. With PARTIAL no message is missing after them.
        rest: what follows the gap, from `oldest` on; None if nothing is kept, or if it must be requested (PARTIAL).
    """

    stream: str
    reason: GapReason
    epoch: str
    oldest: int
    tip: int
    messages: tuple[Registered, ...] = ()
    rest: "Replay | Gap | None" = None

    @property
    def upto(self) -> Position:
        """The last position that the gap covers: the message at `oldest` follows it."""
        return Position(self.epoch, self.oldest - 1)


def split_at_gaps(answer: Replay | Gap) -> list[Replay | Gap]:
    """The parts of an answer: up to the first gap, between two gaps, after the last one. Ignore the `rest` of each."""
    pieces = [answer]
    while isinstance(answer, Gap) and answer.rest is not None:
        answer = answer.rest
        pieces.append(answer)
    return pieces


def last_offset(answer: Replay | Gap) -> int:
    """The last offset that an answer covers: its tip, unless the rest must be requested."""
    last = split_at_gaps(answer)[-1]
    if isinstance(last, Gap):
        return last.oldest - 1 if last.reason is GapReason.PARTIAL else last.tip
    return last.messages[-1].offset if last.more else last.tip


def truncate_answer(answer: Replay | Gap, tip: int) -> Replay | Gap:
    """The same answer without what follows `tip`, an offset of its epoch."""
    messages = answer.messages
    if messages and messages[-1].offset > tip:
        messages = tuple(message for message in messages if message.offset <= tip)
    if isinstance(answer, Replay):
        more = answer.more and messages[-1:] == answer.messages[-1:] and messages[-1].offset < tip
        return Replay(answer.stream, answer.epoch, tip, messages, more)
    if answer.oldest > tip + 1:
        return replace(answer, oldest=tip + 1, tip=tip, messages=messages, rest=None)
    return replace(answer, tip=tip, messages=messages, rest=answer.rest and truncate_answer(answer.rest, tip))


def memory_bytes(messages: Collection[Registered]) -> int:
    """Bytes that they take in memory, roughly."""
    return sum(map(len, map(_payload, messages))) + MESSAGE_OVERHEAD_BYTES * len(messages)


def limit_answer(messages: Iterable[Registered]) -> tuple[tuple[Registered, ...], bool]:
    """As many of these messages as one answer holds, and whether there are more."""
    found = tuple(messages)
    if memory_bytes(found) <= MAX_ANSWER_BYTES:
        return found, False
    room = MAX_ANSWER_BYTES
    for count, message in enumerate(found):
        room -= message.size + MESSAGE_OVERHEAD_BYTES
        if room < 0 and count:
            return found[:count], True
    return found, False


class StreamSummary(Struct, frozen=True):
    """A stream in the REST listing."""

    stream: str
    epoch: str
    tip: int
    oldest: int
    kept: int


class HistoryPage(Struct, frozen=True):
    """A page of history, of at most `MAX_ANSWER_BYTES`. `next_offset`: the offset after which the next page begins, None at the
    end."""

    stream: str
    epoch: str
    tip: int
    oldest: int
    messages: tuple[Registered, ...] = ()
    next_offset: int | None = None


class HistoryPart(Struct, frozen=True):
    """The answer to a client that reads without a subscription.

    Args:
        last: the next request begins after it; at `tip` nothing is left.
        reason: why the messages do not follow the requested position.
    """

    epoch: str
    oldest: int
    last: int
    tip: int
    messages: tuple[Registered, ...] = ()
    reason: GapReason | None = None


class HistoryRange(Struct, frozen=True):
    """At most `limit` messages of one epoch with offsets in [first, last], registered at or after `since` (UNIX seconds)."""

    stream: str
    epoch: str
    first: int
    last: int
    limit: int
    since: float = 0.0


class ColdPiece(Struct, frozen=True):
    """Archived messages of a range, in order. `more`: a limit was reached, and the range continues after the last message."""

    messages: tuple[Registered, ...] = ()
    more: bool = False
