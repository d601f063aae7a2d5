"""What a subscription knows of its streams: which positions it has seen, what to request, and which events it yields. No I/O.

Invariant: each position is yielded once, positions rise, and messages that will not come are reported with a Gap.
"""

from ropewalk.client.events import Event, Gap
from ropewalk.client.messages import DeliveredMessages
from ropewalk.model.history import GapReason, HistoryRequest
from ropewalk.model.messages import Position
from ropewalk.protocol.broky.frames import Run
from ropewalk.protocol.server_messages import HistoryRejected, StreamGap

MICROSECONDS = 1_000_000

DISCONNECTED = "disconnected"
"""Gap reason after a lost connection if the messages of that time cannot be requested: subscriptions by prefix, and streams
whose messages have no positions."""

BEFORE_ALL = Position("", 0)
"""A request from here returns everything that is stored."""


class Track:
    """The streams of one subscription over the cable.

    The answer to a history request is messages, with a rejection at each gap between them, and a confirmation at the end. The
    server may bound an answer and leave the rest to another request: live messages above it are held until it is complete.

    Args:
        since: The requested start time of streams without a position.
        positions: The requested start positions.
    """

    def __init__(self, since: float | None = None, positions: dict[str, Position] | None = None) -> None:
        self.since = since
        self.positions = dict(positions or {})
        self.wants_history = since is not None or bool(positions)
        self.asked = False
        self._tips: dict[str, Position] = {}
        self._partial = False
        self._held: list[DeliveredMessages] = []
        self._gone: set[str] = set()  # streams unknown to the server on this connection; reported with a Gap

    @property
    def wants_more(self) -> bool:
        """The last answer was bounded and is complete: request the rest."""
        return self._partial and not self.asked

    def request(self, default_since: float | None = None) -> HistoryRequest:
        """The request to send now. `default_since` is the start time if the program gave none."""
        self.asked = True
        self._partial = False
        wanted = {stream: known for stream, known in self.positions.items() if self._tips.get(stream) != known}
        return HistoryRequest(default_since if self.since is None else self.since, wanted)

    def lost(self) -> None:
        """The connection is lost, and pending answers with it. The next replay contains the held messages."""
        self.asked = self._partial = False
        self._tips.clear()
        self._held.clear()
        self._gone.clear()

    def began(self, tips: dict[str, Position]) -> list[Event]:
        """The subscription is confirmed. `tips` are where live delivery begins: the position of streams without messages."""
        self.positions = {**tips, **self.positions}
        return []

    def accept(self, delivered: DeliveredMessages) -> list[Event]:
        """The events for delivered messages; none for positions that were seen."""
        if delivered.offset == 0:
            return delivered.events(self.asked)
        if self._overtakes(delivered):
            self._held.append(delivered)
            return []
        return self._advance(delivered)

    def confirmed(self, tips: dict[str, Position] | None = None) -> list[Event]:
        """An answer is complete. Returns the messages held for it; if it `wants_more`, send another request."""
        self.asked = False
        released = [] if self._partial else self._release()
        self.began(tips or {})
        return released

    def rejected(self, rejection: HistoryRejected) -> list[Event]:
        unclaimed = rejection.reason == GapReason.UNCLAIMED
        if rejection.reason == GapReason.DROPPED or (unclaimed and not self.asked):
            # Not an answer: the server continues with its newest messages.
            return [Gap(name, gap.reason, self.positions.get(name)) for name, gap in rejection.streams.items()]
        if not rejection.streams:
            self.asked = False
            return [*self._forget_positions(rejection.reason), *self._release()]
        for stream, gap in rejection.streams.items():
            if unclaimed or gap.reason == GapReason.PARTIAL:
                self._note_tip(stream, gap)
        if unclaimed:
            # Our request and this message crossed. The answer will follow our position; hold messages above it.
            return []
        gaps = [self._gap(stream, gap) for stream, gap in rejection.streams.items() if not self._is_known(stream, gap)]
        # Nothing is missing after a partial answer: the next request returns the rest.
        self._partial = self._partial or any(gap.reason == GapReason.PARTIAL for gap in gaps)
        return [gap for gap in gaps if gap.reason != GapReason.PARTIAL]

    def _note_tip(self, stream: str, gap: StreamGap) -> None:
        """Live delivery began here. A second rejection changes that only if the epoch changed."""
        if gap.epoch and (stream not in self._tips or self._tips[stream].epoch != gap.epoch):
            self._tips[stream] = Position(gap.epoch, gap.tip)

    def _is_known(self, stream: str, gap: StreamGap) -> bool:
        """Whether nothing is missing: the messages came while the request was pending, or the loss of the old epoch was
        reported and the new one is complete."""
        known = self.positions.get(stream)
        if self._starts_new_epoch(stream, gap):
            return True
        trimmed = gap.reason == GapReason.TRIMMED and gap.epoch != ""
        return trimmed and known is not None and known.epoch == gap.epoch and known.offset >= gap.oldest - 1

    def _starts_new_epoch(self, stream: str, gap: StreamGap) -> bool:
        """Whether a stream that was reported as gone exists again from its first message on."""
        starts = stream in self._gone and gap.epoch != "" and gap.reason == GapReason.EPOCH_CHANGED and gap.oldest == 1
        if starts:
            self._gone.discard(stream)
            self.positions[stream] = Position(gap.epoch, 0)
        return starts

    def _gap(self, stream: str, gap: StreamGap) -> Gap:
        known = self.positions.get(stream)
        if not gap.epoch:
            # It gives no position. Keep ours: the answer to the next request reports whether messages are missing.
            if gap.reason == GapReason.EPOCH_CHANGED:
                self._gone.add(stream)
            return Gap(stream, gap.reason, known)
        noted = self._tips.get(stream)
        tip = noted if noted is not None and noted.epoch == gap.epoch else Position(gap.epoch, gap.tip)
        # Ahead: we have seen all offsets up to the tip, and higher ones.
        below = tip.offset if gap.reason == GapReason.AHEAD else min(gap.oldest - 1, tip.offset)
        self.positions[stream] = Position(gap.epoch, below)
        return Gap(stream, gap.reason, known, gap.epoch, below + 1, gap.tip)

    def _forget_positions(self, reason: str) -> list[Event]:
        """The server gave no positions: each stream starts again with its next live message."""
        gaps: list[Event] = [Gap(stream, reason, known) for stream, known in self.positions.items()]
        self.positions.clear()
        self.since = None
        return gaps or [Gap("", reason)]

    def _overtakes(self, delivered: DeliveredMessages) -> bool:
        tip = self._tips.get(delivered.stream)
        if tip is not None:
            return tip.epoch != delivered.epoch or delivered.offset > tip.offset
        known = self.positions.get(delivered.stream)
        if known is None or not self.asked:
            return False
        # A message that does not follow may be one that the server held until it got our request.
        return known.epoch not in ("", delivered.epoch) or delivered.offset > known.offset + 1

    def _release(self) -> list[Event]:
        held, self._held, self._tips = self._held, [], {}
        # Messages held after a rejection may precede messages held before it: sort them within each epoch.
        first_seen = {run: place for place, run in reversed(list(enumerate(map(_epoch_key, held))))}
        held.sort(key=lambda delivered: (first_seen[_epoch_key(delivered)], delivered.offset))
        return [event for delivered in held for event in self._advance(delivered)]

    def _advance(self, delivered: DeliveredMessages) -> list[Event]:
        known = self.positions.get(delivered.stream)
        last = delivered.offset + delivered.count - 1
        seen = known.offset - delivered.offset + 1 if known is not None and known.epoch == delivered.epoch else 0
        if seen >= delivered.count:
            return []
        self.positions[delivered.stream] = Position(delivered.epoch, last)
        gaps = self._unreported_gap(delivered, known)
        return [*gaps, *self._decode(delivered)[max(seen, 0) :]]

    def _decode(self, delivered: DeliveredMessages) -> list[Event]:
        return delivered.events(self.asked)

    def _unreported_gap(self, delivered: DeliveredMessages, known: Position | None) -> list[Event]:
        """A gap that the server did not report. A missing offset is none: publications may exclude this session."""
        complete = delivered.offset == 1 and delivered.stream in self._gone
        self._gone.discard(delivered.stream)
        # An empty epoch is a request from the beginning, not a position that was seen.
        if complete or known is None or known.epoch in ("", delivered.epoch):
            return []
        return [Gap(delivered.stream, GapReason.EPOCH_CHANGED.value, known, delivered.epoch, delivered.offset)]


class KeyTrack(Track):
    """A subscription to one stream over TCP. There offsets have no holes, an answer precedes all live messages, and requests
    by time do not exist: everything is requested, and older messages are filtered here.

    Args:
        stream: The name of the stream.
        position: The requested start. `BEFORE_ALL` is the oldest stored message; None starts live.
        since: The requested start time (UNIX seconds), if there is no position.
    """

    def __init__(self, stream: str, position: Position | None = None, since: float | None = None) -> None:
        start = BEFORE_ALL if position is None and since is not None else position
        super().__init__(None, {} if start is None else {stream: start})
        self.stream = stream
        self._tip = BEFORE_ALL
        self._since = 0 if since is None or position is not None else int(since * MICROSECONDS)
        self._unconfirmed: Gap | None = None  # reported if the next message is one that the program wants
        self._confirmed_before = False

    @property
    def position(self) -> Position | None:
        return self.positions.get(self.stream)

    def request(self, default_since: float | None = None) -> HistoryRequest:
        self._unconfirmed = None
        self._gone.clear()
        return HistoryRequest(None, dict(self.positions))

    def began(self, tips: dict[str, Position]) -> list[Event]:
        """After a reconnect a stream without messages continues at the tip of its first confirmation, and a stream that did not
        exist at its beginning. If it had no position before and has none now, it may be ephemeral: that is a gap."""
        self._tip = tip = tips[self.stream]
        known = self.position
        again, self._confirmed_before = self._confirmed_before, True
        if again and known == BEFORE_ALL and not tip.epoch:
            return [Gap(self.stream, DISCONNECTED, known)]
        if known is None or (known == BEFORE_ALL and not tip.offset):
            self.positions[self.stream] = tip
        return []

    def accept(self, delivered: DeliveredMessages) -> list[Event]:
        offset, epoch, known = delivered.offset, delivered.epoch, self.positions.get(self.stream)
        if known is not None and offset == known.offset + 1 and epoch == known.epoch and not self._since:  # nearly always
            self.positions[self.stream] = Position(epoch, offset + delivered.count - 1)
            return delivered.events(offset <= self._tip.offset and epoch == self._tip.epoch)
        if not offset:
            return delivered.events(False)
        events = self._advance(delivered)
        gap, self._unconfirmed = self._unconfirmed, None
        return events if gap is None or not events else [gap, *events]

    def rejected(self, rejection: HistoryRejected) -> list[Event]:
        gap = rejection.streams[self.stream]
        known = self.position
        if not gap.epoch:
            return [self._gap(self.stream, gap)]
        if known == Position(gap.epoch, gap.oldest - 1) or self._starts_new_epoch(self.stream, gap):
            return []
        self.positions[self.stream] = Position(gap.epoch, gap.oldest - 1)
        tip = self._tip.offset if self._tip.epoch == gap.epoch else None
        reported = Gap(self.stream, gap.reason, known, gap.epoch, gap.oldest, tip)
        if self._since and gap.reason == GapReason.TRIMMED and gap.oldest <= self._tip.offset:
            self._unconfirmed = reported
            return []
        return [reported]

    def _decode(self, delivered: DeliveredMessages) -> list[Event]:
        """Nothing for messages before the requested time. From the first wanted message on, all are."""
        replayed = delivered.offset <= self._tip.offset and delivered.epoch == self._tip.epoch
        if self._since and replayed and isinstance(delivered.source, Run) and delivered.source.ts_broker < self._since:
            return []
        self._since = 0
        return delivered.events(replayed)

    def _unreported_gap(self, delivered: DeliveredMessages, known: Position | None) -> list[Event]:
        hole = known is not None and known.epoch == delivered.epoch and delivered.offset > known.offset + 1
        if hole:
            return [Gap(self.stream, "", known, delivered.epoch, delivered.offset)]
        return super()._unreported_gap(delivered, known)


class PrefixTrack(Track):
    """A subscription to all keys with a prefix. Live only: each reconnect reports a gap. Each stream keeps its order."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name
        self._confirmed_before = False

    def request(self, default_since: float | None = None) -> HistoryRequest:
        return HistoryRequest()

    def began(self, tips: dict[str, Position]) -> list[Event]:
        again, self._confirmed_before = self._confirmed_before, True
        return [Gap(self._name, DISCONNECTED)] if again else []

    def accept(self, delivered: DeliveredMessages) -> list[Event]:
        return delivered.events(False)

    def rejected(self, rejection: HistoryRejected) -> list[Event]:
        return [Gap(self._name, rejection.reason)]


def _epoch_key(delivered: DeliveredMessages) -> tuple[str, str]:
    return delivered.stream, delivered.epoch
