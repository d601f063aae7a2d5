"""A naive model of the contract, and the kinds of anomalies that it detects.

It stores every registered message and checks each message that a client receives against them.
"""

from collections.abc import Callable, Sequence
from enum import StrEnum

from msgspec import Struct

from ropewalk.core.rules import Rulebook
from ropewalk.model.history import GapReason
from ropewalk.model.messages import Position, Registered
from ropewalk.protocol.server_messages import StreamGap


class AnomalyKind(StrEnum):
    """Violations of the contract that a client, a publisher or the store can observe."""

    LOST = "lost"  # a client that stayed connected never received a registered message, nor a gap notice for it
    REPEATED = "repeated"  # a client received a position twice
    REORDERED = "reordered"  # a client received a position after a later one
    SILENT_GAP = "silent gap"  # a client received a position without those before it, and without a gap notice
    FALSE_GAP = "false gap"  # a gap notice covers messages that the store keeps, or names the epoch that the client is in
    REUSED_POSITION = "reused position"  # two publications have the same position, or a client received another message at it
    REGISTERED_TWICE = "registered twice"  # a publication has two positions
    WRONG_RECEIPT = "wrong receipt"  # a receipt has a position that the publication does not have
    KICKED_SESSION_BACK = "kicked session back"  # a session was restored after a remote disconnect ended it
    LOST_SESSION = "lost session"  # a client reconnected in time, and its session was not restored
    SESSION_TWICE = "session twice"  # a session continues on another connection, and its former connection stays open
    ENDED_TWICE = "ended twice"  # the store reported the end of a session twice, or restored it after that
    GHOST_SESSION = "ghost session"  # the store lists a session as connected that has no connection, so that it never ends
    GHOST_MEMBER = "ghost member"  # a presence set or its events contain a member that is not there
    MISSING_MEMBER = "missing member"  # a presence set or its events lack a member that is there
    FAILED = "failed"  # the server closed a connection with an internal error


class Anomaly(Exception):
    """A violation of the contract."""

    def __init__(self, kind: AnomalyKind, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind


class Seen(Struct):
    """The last position of a stream that a client received, or that a gap notice covers.

    `after_gaps`: the first position behind each notice since then whose messages may still be requested. `confirmed`: the
    server has confirmed where the subscription begins.
    """

    epoch: str = ""
    offset: int = 0
    after_gaps: list[Position] = []
    confirmed: bool = False

    @property
    def reached(self) -> Position:
        """The position that the next message follows."""
        if self.after_gaps:
            return Position(self.after_gaps[-1].epoch, self.after_gaps[-1].offset - 1)
        return Position(self.epoch, self.offset)


def _message_id(payload: bytes) -> bytes:
    """The unique part of a simulated payload: without its padding."""
    return payload.strip(b'" ')


class Ledger:
    """All registered messages by stream and epoch, and the position of each publication."""

    def __init__(self, rules: Rulebook, now: Callable[[], float]) -> None:
        self._rules = rules
        self._now = now
        self._messages: dict[str, dict[str, list[bytes]]] = {}
        self._times: dict[tuple[str, str], list[float]] = {}  # (stream, epoch) → times of its messages in the store
        self._positions: dict[bytes, Position] = {}
        self._lost_positions: dict[bytes, Position] = {}  # registered before the store lost its data
        self._lost_epochs: set[str] = set()
        self.registered = 0
        self.delivered = 0

    def register(self, messages: Sequence[Registered]) -> None:
        for message in messages:
            if not message.offset:
                continue
            self.registered += 1
            stream, epoch, offset = message.stream, message.epoch, message.offset
            known = self._messages.setdefault(stream, {}).setdefault(epoch, [])
            if offset <= len(known):
                raise Anomaly(AnomalyKind.REUSED_POSITION, f"{stream} assigned {epoch}/{offset} a second time")
            if offset > len(known) + 1:
                raise Anomaly(AnomalyKind.SILENT_GAP, f"{stream} has no {epoch}/{len(known) + 1}")
            message_id = _message_id(message.payload)
            if (first := self._positions.get(message_id)) is not None:
                positions = f"{first.epoch}/{first.offset} and {epoch}/{offset} of {stream}"
                raise Anomaly(AnomalyKind.REGISTERED_TWICE, f"{message_id!r} is at {positions}")
            known.append(message_id)
            self._times.setdefault((stream, epoch), []).append(message.timestamp)
            self._positions[message_id] = Position(epoch, offset)

    def check_receipt(self, payload: bytes, epoch: str, offset: int) -> None:
        message_id = _message_id(payload)
        position = self._positions.get(message_id)
        if Position(epoch, offset) not in (position, self._lost_positions.get(message_id)):
            raise Anomaly(AnomalyKind.WRONG_RECEIPT, f"the receipt of {message_id!r} has {epoch}/{offset}, it is at {position}")

    def store_lost(self) -> None:
        """The store has lost its data: it never reuses a position, but it cannot detect duplicates of lost publications."""
        self._lost_positions.update(self._positions)
        self._lost_epochs.update(epoch for epochs in self._messages.values() for epoch in epochs)
        self._positions.clear()
        self._times.clear()

    def deliver(self, client: str, seen: Seen, message: Registered) -> None:
        """Check a message that a client received. Raises Anomaly."""
        self.delivered += 1
        stream, epoch, offset = message.stream, message.epoch, message.offset
        known = self._messages.get(stream, {}).get(epoch, [])
        message_id = _message_id(message.payload)
        if offset > len(known) or known[offset - 1] != message_id:
            raise Anomaly(AnomalyKind.REUSED_POSITION, f"{client} got {message_id!r} at {epoch}/{offset} of {stream}")
        # Messages dropped for a slow client may still come, if the client requests them.
        expected = Position(seen.epoch or epoch, seen.offset + 1)
        # In flight when the store lost it, and the client has no position, or a notice that the stream restarts.
        late = not seen.epoch and epoch in self._lost_epochs
        if not late and Position(epoch, offset) not in (expected, *seen.after_gaps):
            raise self._out_of_order(client, seen, message, (seen.after_gaps or [expected])[-1])
        seen.epoch, seen.offset, seen.after_gaps, seen.confirmed = epoch, offset, [], True

    def report_gap(self, client: str, stream: str, seen: Seen, gap: StreamGap) -> None:
        """Check a gap notice that a client received. A message that the notice covers and the store keeps now was kept when
        the notice was sent. Raises Anomaly."""
        if gap.reason == GapReason.PARTIAL:  # the client requests the rest
            return
        if gap.reason == GapReason.DROPPED:  # the client may request them
            seen.after_gaps.append(Position(gap.epoch, gap.oldest))
            return
        reached, text = seen.reached, f"{client} got {gap.reason} of {stream} up to {gap.epoch}/{gap.oldest - 1}"
        if gap.reason == GapReason.EPOCH_CHANGED and gap.epoch and gap.epoch == seen.epoch:
            raise Anomaly(AnomalyKind.FALSE_GAP, f"{text} after {seen.epoch}/{seen.offset}")
        first = reached.offset + 1 if gap.epoch == reached.epoch else 1
        if kept := [offset for offset in self._kept(stream, gap.epoch) if first <= offset < gap.oldest]:
            raise Anomaly(AnomalyKind.FALSE_GAP, f"{text}, and the store keeps {gap.epoch}/{kept[0]}")
        seen.epoch, seen.offset, seen.after_gaps = gap.epoch, gap.oldest - 1, []

    def _kept(self, stream: str, epoch: str) -> range:
        """The offsets that the store keeps by its rules."""
        times, rules, now = self._times.get((stream, epoch), []), self._rules.of(stream), self._now()
        tip = oldest = len(times) + 1
        while oldest > max(1, tip - rules.history_limit) and times[oldest - 2] + rules.history_ttl > now:
            oldest -= 1
        return range(oldest, tip)

    def _out_of_order(self, client: str, seen: Seen, message: Registered, expected: Position) -> Anomaly:
        position = f"{message.epoch}/{message.offset} of {message.stream}"
        text = f"{client} got {position}, expected {expected.epoch}/{expected.offset}"
        if message.epoch == seen.epoch and message.offset <= seen.offset:
            return Anomaly(AnomalyKind.REPEATED if message.offset == seen.offset else AnomalyKind.REORDERED, text)
        return Anomaly(AnomalyKind.SILENT_GAP, text)

    def check_end(self, client: str, stream: str, seen: Seen, tip: Position) -> None:
        """Check after a quiet period that a subscriber has every message, or a gap notice. The tip is empty if the store has
        forgotten the stream. Raises Anomaly."""
        reached = seen.reached
        if tip.epoch and reached != tip:
            raise Anomaly(
                AnomalyKind.LOST, f"{client} has {stream} up to {reached.epoch}/{reached.offset} of {tip.epoch}/{tip.offset}"
            )
