"""A subscription: one identifier of one session, its streams, and which offsets of each the client was sent."""

from collections.abc import Collection, Iterable, Sequence

from msgspec.structs import replace

from ropewalk.core.delivered import Delivered
from ropewalk.engine.audience import Group, JoinBuffer
from ropewalk.model.history import Gap, GapReason, Replay
from ropewalk.model.messages import Position
from ropewalk.model.sessions import Subscribed

Steps = list[Replay | Gap]
"""An answer of the store, piece by piece, as `steps` gives it."""


class Subscription:
    """Either held (restored, its history not claimed yet) or joined: then it is live, and `delivered` is set.

    `delivered` is parallel to the granted streams: no history request sends a message that this connection already got.
    `buffers` hold the messages of a held one, by stream.
    """

    __slots__ = ("buffers", "claimed", "delivered", "granted", "groups", "identifier")

    def __init__(self, identifier: str, granted: Subscribed) -> None:
        self.identifier = identifier
        self.granted = granted
        self.claimed = False  # a join is under way or done
        self.groups: tuple[Group, ...] = ()
        self.delivered: tuple[Delivered, ...] | None = None
        self.buffers: dict[str, JoinBuffer] | None = None

    @property
    def held(self) -> bool:
        return self.delivered is None

    def add_streams(self, streams: Sequence[str], delivered: Sequence[Delivered], groups: Sequence[Group]) -> None:
        self.granted = replace(self.granted, streams=(*self.granted.streams, *streams))
        if self.delivered is not None:
            self.delivered = (*self.delivered, *delivered)
            self.groups = (*self.groups, *groups)

    def remove_streams(self, streams: Collection[str]) -> list[Group]:
        """Returns the groups to leave."""
        kept = [index for index, stream in enumerate(self.granted.streams) if stream not in streams]
        left = [group for group in self.groups if group.stream in streams]
        self.granted = replace(self.granted, streams=tuple(self.granted.streams[index] for index in kept))
        self.groups = tuple(group for group in self.groups if group.stream not in streams)
        if self.delivered is not None:
            self.delivered = tuple(self.delivered[index] for index in kept)
        return left

    def find_delivered(self, stream: str) -> Delivered | None:
        """None if it has no such stream, or is not live."""
        if self.delivered is None or stream not in self.granted.streams:
            return None
        return self.delivered[self.granted.streams.index(stream)]

    def take_unsent(self, pieces: Steps) -> Steps:
        """The part of an answer that was not sent and will not come live. It is recorded as sent."""
        answer = pieces[0]
        before = self.find_delivered(answer.stream)
        if before is None:
            return []
        if before.epoch != answer.epoch:  # the epoch began after the join, so all of it was delivered live
            before = Delivered(answer.epoch, 1)
        self._set(self.granted.streams.index(answer.stream), with_sent(before, pieces))
        unsure = any(message.offset <= before.horizon for piece in pieces for message in piece.messages)
        forgotten = Gap(answer.stream, GapReason.DROPPED, answer.epoch, before.horizon + 1, answer.tip)
        return [*([forgotten] if unsure else []), *(_undelivered(before, piece) for piece in pieces)]

    def skip(self, stream: str, after: Position, upto: Position) -> None:
        """Live messages above `after`, up to and with `upto`, were dropped."""
        if self.delivered is not None and stream in self.granted.streams:
            index = self.granted.streams.index(stream)
            self._set(index, self.delivered[index].remove(after, upto))

    def _set(self, index: int, changed: Delivered) -> None:
        each = list(self.delivered or ())
        each[index] = changed
        self.delivered = tuple(each)


def with_sent(before: Delivered, pieces: Iterable[Replay | Gap]) -> Delivered:
    """The record after these pieces are sent too. The messages of each are dense."""
    for piece in pieces:
        if piece.messages:
            before = before.add(piece.messages[0].offset, piece.messages[-1].offset)
    return before


def _undelivered(before: Delivered, piece: Replay | Gap) -> Replay | Gap:
    messages = tuple(message for message in piece.messages if before.is_missing(message.offset))
    if isinstance(piece, Gap) and piece.reason is GapReason.PARTIAL and piece.oldest >= before.live_from:
        # A bounded answer that reaches the live messages is complete.
        return Replay(piece.stream, piece.epoch, piece.tip, messages)
    return replace(piece, messages=messages)
