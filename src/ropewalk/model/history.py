"""History requests and their two kinds of answer: a `Replay` without holes, or a `Gap` with a reason."""

from enum import StrEnum

from msgspec import Struct

from ropewalk.model.messages import Position, Registered

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
    """The messages after the asked position, up to `tip`, without a hole. `epoch` and `tip` are where live goes on."""

    stream: str
    epoch: str
    tip: int
    messages: tuple[Registered, ...] = ()


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


class StreamSummary(Struct, frozen=True):
    """One stream as the REST listing shows it."""

    stream: str
    epoch: str
    tip: int
    oldest: int
    kept: int


class HistoryPage(Struct, frozen=True):
    """A piece of history for readers that page. `next_offset` is the offset to ask after next, None at the end."""

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
