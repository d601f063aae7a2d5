"""A subscription: one identifier of one session, the streams behind it, and how far each of them is owed to the client."""

from collections.abc import Collection, Sequence

from msgspec.structs import replace

from ropewalk.engine.hub import Group
from ropewalk.model.history import Gap, Replay
from ropewalk.model.messages import Position, Registered
from ropewalk.model.sessions import Subscribed


class Subscription:
    """Held (a restored one that has not claimed its history) or joined: then everything above its floors goes live.

    A floor is the stream's tip at the join, lowered by each history request it answers, so that no request brings
    a message that this connection already got.
    """

    __slots__ = ("claimed", "floors", "granted", "groups", "identifier")

    def __init__(self, identifier: str, granted: Subscribed) -> None:
        self.identifier = identifier
        self.granted = granted
        self.claimed = False  # a join is under way or done
        self.groups: tuple[Group, ...] = ()
        self.floors: tuple[Position, ...] | None = None

    @property
    def held(self) -> bool:
        return self.floors is None

    def add_streams(self, streams: Sequence[str], floors: Sequence[Position], groups: Sequence[Group]) -> None:
        self.granted = replace(self.granted, streams=(*self.granted.streams, *streams))
        if self.floors is not None:
            self.floors = (*self.floors, *floors)
            self.groups = (*self.groups, *groups)

    def remove_streams(self, streams: Collection[str]) -> list[Group]:
        """The groups that are to be left."""
        kept = [index for index, stream in enumerate(self.granted.streams) if stream not in streams]
        left = [group for group in self.groups if group.stream in streams]
        self.granted = replace(self.granted, streams=tuple(self.granted.streams[index] for index in kept))
        self.groups = tuple(group for group in self.groups if group.stream not in streams)
        if self.floors is not None:
            self.floors = tuple(self.floors[index] for index in kept)
        return left

    def owed(self, index: int, answer: Replay | Gap) -> tuple[Registered, ...]:
        """The part of an answer that is not, and will not be, delivered live."""
        if self.floors is None:
            return answer.messages
        floor = self.floors[index]
        # Another epoch than at the join: all of it came while we listened.
        ceiling = floor.offset if floor.epoch == answer.epoch else 0
        return tuple(message for message in answer.messages if message.offset <= ceiling)

    def reaches_live(self, index: int, epoch: str, offset: int) -> bool:
        """Whether everything above `offset` was or will be delivered live."""
        return self.floors is not None and self.floors[index].epoch == epoch and offset >= self.floors[index].offset

    def lower(self, index: int, position: Position) -> None:
        """History from `position` on has been delivered up to the floor."""
        assert self.floors is not None
        floor = self.floors[index]
        if floor.epoch == position.epoch and position.offset < floor.offset:
            self.set_floor(index, position)

    def set_floor(self, index: int, position: Position) -> None:
        floors = list(self.floors or ())
        floors[index] = position
        self.floors = tuple(floors)
