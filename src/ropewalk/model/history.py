"""History requests and their two kinds of answer: a `Replay` without holes, or a `Gap` with a reason."""

from collections.abc import Collection, Iterable
from enum import StrEnum
from operator import attrgetter

from msgspec import Struct
from msgspec.structs import replace

from ropewalk.model.messages import Position, Registered

ANSWER_BYTES = 256 * 1024
"""Of messages in one answer of a store. It holds at least one message."""

MESSAGE_BYTES = 200
"""What a message in memory takes besides its payload, roughly."""

MAX_ANSWER_MESSAGES = ANSWER_BYTES // MESSAGE_BYTES + 1

_payload = attrgetter("payload")

Tip = tuple[str, Position]
"""A stream and how far it had come."""


class GapReason(StrEnum):
    """Why a piece of a stream cannot be delivered. Sent to clients as `reason` of `reject_history`."""

    TRIMMED = "trimmed"  # the wanted offset left the hot history
    PARTIAL = "partial"  # the answer reached its bound; what follows can be asked for
    EPOCH_CHANGED = "epoch_changed"  # the stream's past was lost and its offsets began anew
    AHEAD = "ahead"  # the client knows an offset that was never given in this epoch
    UNCLAIMED = "unclaimed"  # a restored session did not ask for its history within the resume timeout
    DROPPED = "dropped"  # the connection was too slow, and its stream's rule skips to the newest


class HistoryRequest(Struct, frozen=True):
    """`streams` are the positions a client has; `since` (UNIX seconds) serves the streams it has no position of."""

    since: float | None = None
    streams: dict[str, Position] = {}


class Replay(Struct, frozen=True):
    """The messages after the asked position, up to `tip`, without a hole. `epoch` and `tip` are where live goes on.

    `more`: the answer reached `ANSWER_BYTES`. Ask from its last message for what follows.
    """

    stream: str
    epoch: str
    tip: int
    messages: tuple[Registered, ...] = ()
    more: bool = False


class Gap(Struct, frozen=True):
    """A replay that does not join up. `oldest`: first offset still kept after the gap (tip + 1 when none is).

    Without an epoch it gives no position, and `oldest` and `tip` mean nothing: either the store does not know the stream now
    (EPOCH_CHANGED, UNCLAIMED), or messages without a position may be missing (TRIMMED, DROPPED). The client keeps its
    position: the answer to a request from there reports whether messages are missing.

    `messages` are what there is between the asked position and the gap; with PARTIAL there is no hole behind them.
    `rest` is what follows the gap, from `oldest` on; None where nothing is kept, or where it has to be asked for (PARTIAL).
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


def steps(answer: Replay | Gap) -> list[Replay | Gap]:
    """An answer piece by piece: up to the first gap, between two gaps, after the last one. Ignore the `rest` of each."""
    pieces = [answer]
    while isinstance(answer, Gap) and answer.rest is not None:
        answer = answer.rest
        pieces.append(answer)
    return pieces


def end(answer: Replay | Gap) -> int:
    """The last offset that an answer covers: its tip, unless the rest has to be asked for."""
    last = steps(answer)[-1]
    if isinstance(last, Gap):
        return last.oldest - 1 if last.reason is GapReason.PARTIAL else last.tip
    return last.messages[-1].offset if last.more else last.tip


def up_to(answer: Replay | Gap, tip: int) -> Replay | Gap:
    """The same answer without what follows `tip`, an offset of its epoch."""
    messages = answer.messages
    if messages and messages[-1].offset > tip:
        messages = tuple(message for message in messages if message.offset <= tip)
    if isinstance(answer, Replay):
        more = answer.more and messages[-1:] == answer.messages[-1:] and messages[-1].offset < tip
        return Replay(answer.stream, answer.epoch, tip, messages, more)
    if answer.oldest > tip + 1:
        return replace(answer, oldest=tip + 1, tip=tip, messages=messages, rest=None)
    return replace(answer, tip=tip, messages=messages, rest=answer.rest and up_to(answer.rest, tip))


def size_of(messages: Collection[Registered]) -> int:
    """Bytes that they take in memory, roughly."""
    return sum(map(len, map(_payload, messages))) + MESSAGE_BYTES * len(messages)


def first_answer(messages: Iterable[Registered]) -> tuple[tuple[Registered, ...], bool]:
    """As many of these messages as one answer holds, and whether there are more."""
    found = tuple(messages)
    if size_of(found) <= ANSWER_BYTES:
        return found, False
    room = ANSWER_BYTES
    for count, message in enumerate(found):
        room -= message.size + MESSAGE_BYTES
        if room < 0 and count:
            return found[:count], True
    return found, False


class StreamSummary(Struct, frozen=True):
    """One stream as the REST listing shows it."""

    stream: str
    epoch: str
    tip: int
    oldest: int
    kept: int


class HistoryPage(Struct, frozen=True):
    """A piece of history for readers that page, of at most `ANSWER_BYTES`. `next_offset` is the offset to ask after next, None
    at the end."""

    stream: str
    epoch: str
    tip: int
    oldest: int
    messages: tuple[Registered, ...] = ()
    next_offset: int | None = None


class HistoryPart(Struct, frozen=True):
    """The answer to a client that reads without a subscription. What it asks for next begins after `last`; at the tip it has
    everything. `reason`: why this does not follow the position that was asked for."""

    epoch: str
    oldest: int
    last: int
    tip: int
    messages: tuple[Registered, ...] = ()
    reason: GapReason | None = None


class ColdPiece(Struct, frozen=True):
    """What the archive has of a range, in order. `more`: it was cut at a bound, and goes on after its last message."""

    messages: tuple[Registered, ...] = ()
    more: bool = False
