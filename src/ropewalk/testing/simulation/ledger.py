"""A naive model of the contract, and the names of what may go wrong with it.

It remembers everything that was ever registered, and looks at each thing that a client gets.
"""

from collections.abc import Sequence
from enum import StrEnum

from msgspec import Struct

from ropewalk.model.messages import Position, Registered


class AnomalyKind(StrEnum):
    """What a client, a publisher or the store can see go wrong."""

    LOST = "lost"  # it was registered, and a client that stayed did not get it in the end, nor was it told of a gap
    REPEATED = "repeated"  # a client got a position twice
    REORDERED = "reordered"  # a client got a position after a later one
    SILENT_GAP = "silent gap"  # a client got a position, and was not told that some before it are missing
    REUSED_POSITION = "reused position"  # a position was given to two publications, or a client got another message at it
    REGISTERED_TWICE = "registered twice"  # one publication has two positions
    WRONG_RECEIPT = "wrong receipt"  # a publisher was told a position that its publication does not have
    KICKED_SESSION_BACK = "kicked session back"  # a session was restored after it had been ended by a remote disconnect
    LOST_SESSION = "lost session"  # a client came back in time, and its session was not restored
    SESSION_TWICE = "session twice"  # a session went on elsewhere, and its former connection stayed open
    ENDED_TWICE = "ended twice"  # a session was given out as over two times, or restored after it
    GHOST_SESSION = "ghost session"  # the store takes a session for connected that is connected nowhere, so that it never ends
    GHOST_MEMBER = "ghost member"  # somebody is listed or was announced in a presence set, and is not there
    MISSING_MEMBER = "missing member"  # somebody is there, and is not listed or was not announced
    FAILED = "failed"  # the server closed a connection with an internal error


class Anomaly(Exception):
    """The contract was broken."""

    def __init__(self, kind: AnomalyKind, what: str) -> None:
        super().__init__(f"{kind}: {what}")
        self.kind = kind


class Seen(Struct):
    """What one client has of one stream. `told`: gaps were said since then, and this is what follows each. `begun`: the
    server has said where it begins."""

    epoch: str = ""
    offset: int = 0
    told: list[Position] = []
    begun: bool = False


def _name(payload: bytes) -> bytes:
    """What tells a publication of the simulation from all others: its payload without what makes it long."""
    return payload.strip(b'" ')


class Ledger:
    """Everything that was registered, by stream and epoch, and where each publication is."""

    def __init__(self) -> None:
        self._messages: dict[str, dict[str, list[bytes]]] = {}
        self._places: dict[bytes, Position] = {}
        self._lost_places: dict[bytes, Position] = {}  # before the store lost its data
        self._lost_epochs: set[str] = set()
        self.registered = 0
        self.delivered = 0

    def register(self, messages: Sequence[Registered]) -> None:
        for message in messages:
            if not message.offset:
                continue
            self.registered += 1
            of_epoch = self._messages.setdefault(message.stream, {}).setdefault(message.epoch, [])
            if message.offset <= len(of_epoch):
                raise Anomaly(
                    AnomalyKind.REUSED_POSITION, f"{message.stream} gave {message.epoch}/{message.offset} a second time"
                )
            if message.offset > len(of_epoch) + 1:
                raise Anomaly(AnomalyKind.SILENT_GAP, f"{message.stream} has no {message.epoch}/{len(of_epoch) + 1}")
            name = _name(message.payload)
            if (before := self._places.get(name)) is not None:
                where = f"{before.epoch}/{before.offset} and {message.epoch}/{message.offset} of {message.stream}"
                raise Anomaly(AnomalyKind.REGISTERED_TWICE, f"{name!r} is at {where}")
            of_epoch.append(name)
            self._places[name] = Position(message.epoch, message.offset)

    def check_receipt(self, payload: bytes, epoch: str, offset: int) -> None:
        place = self._places.get(_name(payload))
        if Position(epoch, offset) not in (place, self._lost_places.get(_name(payload))):
            raise Anomaly(AnomalyKind.WRONG_RECEIPT, f"{_name(payload)!r} was said to be at {epoch}/{offset} and is at {place}")

    def store_lost(self) -> None:
        """The store has lost its data: positions stay given, but it cannot know a repetition any more."""
        self._lost_places.update(self._places)
        self._lost_epochs.update(epoch for epochs in self._messages.values() for epoch in epochs)
        self._places.clear()

    def deliver(self, who: str, seen: Seen, message: Registered) -> None:
        """A client got this. Raises Anomaly."""
        self.delivered += 1
        stream, epoch, offset = message.stream, message.epoch, message.offset
        of_epoch = self._messages.get(stream, {}).get(epoch, [])
        if offset > len(of_epoch) or of_epoch[offset - 1] != _name(message.payload):
            raise Anomaly(AnomalyKind.REUSED_POSITION, f"{who} got {_name(message.payload)!r} at {epoch}/{offset} of {stream}")
        expected = Position(seen.epoch or epoch, seen.offset + 1)
        behind_gaps = [Position(told.epoch or epoch, told.offset) for told in seen.told]
        # What was dropped may still come, if the client asks for it.
        # It was under way when the store lost it, and the client was told of nothing or that everything begins anew.
        anew = not seen.epoch or any(not told.epoch for told in seen.told)
        late = anew and epoch in self._lost_epochs
        if not late and Position(epoch, offset) not in (expected, *behind_gaps):
            raise self._out_of_order(who, seen, message, (behind_gaps or [expected])[-1])
        seen.epoch, seen.offset, seen.told, seen.begun = epoch, offset, [], True

    def _out_of_order(self, who: str, seen: Seen, message: Registered, expected: Position) -> Anomaly:
        got = f"{who} got {message.epoch}/{message.offset} of {message.stream} where {expected.epoch}/{expected.offset} follows"
        if message.epoch == seen.epoch and message.offset <= seen.offset:
            return Anomaly(AnomalyKind.REPEATED if message.offset == seen.offset else AnomalyKind.REORDERED, got)
        return Anomaly(AnomalyKind.SILENT_GAP, got)

    def check_end(self, who: str, stream: str, seen: Seen, tip: Position) -> None:
        """All is quiet: a client that listens has everything, or was told that it has not. A stream that the store forgot has
        no tip."""
        reached = Position(seen.epoch, seen.offset)
        if seen.told:
            reached = Position(seen.told[-1].epoch, seen.told[-1].offset - 1)
        if tip.epoch and reached != tip:
            raise Anomaly(
                AnomalyKind.LOST, f"{who} has {stream} up to {reached.epoch}/{reached.offset} of {tip.epoch}/{tip.offset}"
            )
