"""What one subscription over TCP knows of its stream: which positions were seen, what to ask for, and what a run yields.

Invariant: a position is yielded once, positions rise, and what cannot come is said with a Gap. It rests on the order of the
wire: a subscription is confirmed first, then comes what was asked for of its history, then what is new.
"""

from typing import Protocol

from ropewalk.client.broky_messages import events_of
from ropewalk.client.events import Event, Gap
from ropewalk.model.history import GapReason
from ropewalk.model.messages import Position
from ropewalk.protocol.broky import frames
from ropewalk.protocol.broky.frames import Match, Reason, Run, Subscribed
from ropewalk.protocol.stream_keys import name_of

MICROSECONDS = 1_000_000

DISCONNECTED = "disconnected"
"""The reason of a Gap where what came while there was no connection cannot be asked for: of a subscription by prefix, and of a
stream whose messages have no positions."""

UNKNOWN_EPOCH = b"?"
"""Asked for where a position has an offset and no epoch, which the wire does not have: no stream has this one, and the server
tells that and where the stream stands."""

REASONS = {
    Reason.TRIMMED: GapReason.TRIMMED.value,
    Reason.EPOCH_CHANGED: GapReason.EPOCH_CHANGED.value,
    Reason.AHEAD: GapReason.AHEAD.value,
    Reason.SLOW: GapReason.DROPPED.value,
}


class AnyTrack(Protocol):
    """What a subscription is asked for, and told of what arrives."""

    match: Match

    def request(self, ref: int, key: bytes) -> frames.Subscribe: ...
    def began(self, subscribed: Subscribed) -> list[Event]: ...
    def accept(self, run: Run) -> list[Event]: ...
    def missing(self, gap: frames.Gap) -> list[Event]: ...


class BrokyTrack:
    """`position`: after which the program wants to begin; without an epoch it is the beginning of all that is kept, and a
    gap comes first if it has an offset. `since`: it wants what came since this UNIX time. With neither it begins with what
    is new.

    The wire has no requests by time: everything is asked for, and what is older is left out here.
    """

    match = Match.EXACT

    def __init__(self, stream: str, position: Position | None = None, since: float | None = None) -> None:
        self.stream = stream
        self._begun = position is not None or since is not None
        self._epoch = position.epoch if position else ""
        self._offset = position.offset if position else 0
        self._epoch_bytes = self._epoch.encode() or (UNKNOWN_EPOCH if self._offset else b"")
        self._tip = Position("", 0)
        self._since = 0 if since is None or position is not None else int(since * MICROSECONDS)
        self._doubtful: Gap | None = None
        self._gone = False  # the server did not know the stream on this connection, and that was yielded as a Gap
        self._held = False  # the server has confirmed it once

    @property
    def position(self) -> Position | None:
        """The last one that was seen, or after which was asked. Without an epoch: nothing of the stream was seen yet, and
        everything is wanted. None: what is new, wherever the stream stands."""
        return Position(self._epoch, self._offset) if self._begun else None

    def request(self, ref: int, key: bytes) -> frames.Subscribe:
        """What to ask the server for now."""
        self._doubtful = None
        self._gone = False
        everything = self._begun and not self._epoch_bytes
        return frames.Subscribe(ref, key, epoch=self._epoch_bytes, offset=self._offset, history=everything)

    def began(self, subscribed: Subscribed) -> list[Event]:
        """The subscription holds. A stream of which nothing was seen goes on from here after a lost connection; one that does
        not exist yet goes on from its beginning. One that had no position before a lost connection, and has none after it, may
        be ephemeral: nobody can tell what came meanwhile."""
        self._tip = Position(subscribed.epoch.decode(), subscribed.offset)
        again, self._held = self._held, True
        if again and not self._epoch_bytes and not subscribed.epoch:
            return [Gap(self.stream, DISCONNECTED, self.position)]
        if not self._begun or (not self._epoch_bytes and not subscribed.offset):
            self._begun = True
            self._move(subscribed.epoch, subscribed.offset)
        return []

    def accept(self, run: Run) -> list[Event]:
        """What a run yields: nothing of what was seen."""
        offset = run.offset
        if run.epoch == self._epoch_bytes and offset == self._offset + 1 and not self._since:
            self._offset += run.count
            return events_of(run, self.stream, self._tip)
        if not offset:
            return events_of(run, self.stream)
        return self._out_of_order(run)

    def missing(self, gap: frames.Gap) -> list[Event]:
        """What a Gap of the server yields."""
        known = self.position
        epoch = gap.epoch.decode()
        if not epoch:
            # It gives no position. Keep ours: the answer to the next request reports whether messages are missing.
            self._gone = self._gone or gap.reason is Reason.EPOCH_CHANGED
            return [Gap(self.stream, REASONS.get(gap.reason, ""), known)]
        if known is not None and known == Position(epoch, gap.last):
            return []  # nothing is: the answer only had a bound here
        self._move(gap.epoch, gap.last)
        if self._gone and gap.reason is Reason.EPOCH_CHANGED and not gap.last:
            self._gone = False
            return []  # the stream begins now, and that its past is gone was yielded before
        tip = self._tip.offset if self._tip.epoch == epoch else None
        told = Gap(self.stream, REASONS.get(gap.reason, ""), known, epoch, gap.last + 1, tip)
        if self._since and gap.reason is Reason.TRIMMED and gap.last < self._tip.offset:
            self._doubtful = told  # the next message shows whether what is missing was wanted
            return []
        return [told]

    def _move(self, epoch: bytes, offset: int) -> None:
        self._epoch_bytes, self._epoch, self._offset = epoch, epoch.decode(), offset

    def _out_of_order(self, run: Run) -> list[Event]:
        known = self.position
        last = run.offset + run.count - 1
        same = run.epoch == self._epoch_bytes
        seen = self._offset - run.offset + 1 if same else 0
        if seen >= run.count:
            return []
        gaps = self._unannounced(run, known, same)
        self._move(run.epoch, last)
        if self._since and not self._is_wanted(run):
            self._doubtful = None
            return []
        if self._doubtful is not None:
            gaps.append(self._doubtful)
            self._doubtful = None
        return [*gaps, *events_of(run, self.stream, self._tip)[max(seen, 0) :]]

    def _is_wanted(self, run: Run) -> bool:
        """By its time. From the first message that is, all are."""
        replayed = run.offset <= self._tip.offset and run.epoch.decode() == self._tip.epoch
        if replayed and run.ts_broker < self._since:
            return False
        self._since = 0
        return True

    def _unannounced(self, run: Run, known: Position | None, same: bool) -> list[Event]:
        """A server tells its gaps. Whatever is missing all the same is not passed over in silence."""
        began, self._gone = self._gone and run.offset == 1, False
        if not same and self._epoch_bytes and not began:
            return [Gap(self.stream, GapReason.EPOCH_CHANGED.value, known, run.epoch.decode(), run.offset)]
        if same and run.offset > self._offset + 1:
            return [Gap(self.stream, "", known, self._epoch, run.offset)]
        return []


class PrefixTrack:
    """A subscription to all keys that begin with something. It has no past: after a lost connection it begins anew, and says so
    with a Gap. Each stream keeps its order."""

    match = Match.PREFIX

    def __init__(self, name: str) -> None:
        self._name = name
        self._begun = False

    def request(self, ref: int, key: bytes) -> frames.Subscribe:
        return frames.Subscribe(ref, key, Match.PREFIX)

    def began(self, subscribed: Subscribed) -> list[Event]:
        again, self._begun = self._begun, True
        return [Gap(self._name, DISCONNECTED)] if again else []

    def accept(self, run: Run) -> list[Event]:
        return events_of(run, name_of(run.key))

    def missing(self, gap: frames.Gap) -> list[Event]:
        return [Gap(self._name, REASONS.get(gap.reason, ""))]
