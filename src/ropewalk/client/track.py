"""What one subscription knows of its streams: which positions were seen, what to ask for, and what a rejection means.

Invariant: a position is yielded once, positions rise, and what cannot come is said with a Gap.

An answer to a history request is a run of messages, with a rejection at each gap in it, and a confirmation at its end. What
the server kept behind a gap follows it. A server that bounds its answers may leave a part of the history to be asked for again:
until that has come, messages from above it are held back, so that the order stays.
"""

import logging

from ropewalk.client.events import UNREADABLE, Gap, Message
from ropewalk.client.payloads import decode_payload
from ropewalk.model.history import GapReason, HistoryRequest
from ropewalk.model.messages import Position
from ropewalk.protocol.server_messages import Data, HistoryRejected, StreamGap

logger = logging.getLogger("ropewalk.client")


class Track:
    """The positions of one subscription. `since` is the program's wish for the streams that have none."""

    def __init__(self, since: float | None = None, positions: dict[str, Position] | None = None) -> None:
        self.since = since
        self.positions = dict(positions or {})
        self.asked = False
        self._tips: dict[str, Position] = {}
        self._partial = False
        self._held: list[Data] = []
        self._gone: set[str] = set()  # streams that the server did not know on this connection: that was yielded as a Gap

    @property
    def wants_more(self) -> bool:
        """The last answer was bounded, and is complete: ask for what follows it."""
        return self._partial and not self.asked

    def request(self, otherwise: float | None = None) -> HistoryRequest:
        """What to ask the server for now; the caller sends it. `otherwise` is the time to ask from if there was no wish."""
        self.asked = True
        self._partial = False
        wanted = {stream: known for stream, known in self.positions.items() if self._tips.get(stream) != known}
        return HistoryRequest(otherwise if self.since is None else self.since, wanted)

    def lost(self) -> None:
        """The connection is gone, and with it every answer; the next replay contains what was held."""
        self.asked = self._partial = False
        self._tips.clear()
        self._held.clear()
        self._gone.clear()

    def accept(self, data: Data) -> list[Message | Gap]:
        """What a message yields: nothing if its position was seen."""
        if data.offset == 0:
            return self._told(data)
        if self._overtakes(data):
            self._held.append(data)
            return []
        return self._advance(data)

    def began(self, tips: dict[str, Position]) -> None:
        """Live delivery goes on from these tips: the position of a stream of which nothing was seen yet."""
        self.positions = {**tips, **self.positions}

    def confirmed(self, tips: dict[str, Position] | None = None) -> list[Message | Gap]:
        """The answer to a history request ends here. Returns what had to wait for that; ask again if it `wants_more`."""
        self.asked = False
        released = [] if self._partial else self._release()
        self.began(tips or {})
        return released

    def rejected(self, rejection: HistoryRejected) -> list[Message | Gap]:
        """What a rejection yields."""
        unclaimed = rejection.reason == GapReason.UNCLAIMED
        if rejection.reason == GapReason.DROPPED or (unclaimed and not self.asked):
            # Nobody asked: the server went on with what is newest, and that needs no answer.
            return [Gap(name, gap.reason, self.positions.get(name)) for name, gap in rejection.streams.items()]
        if not rejection.streams:
            self.asked = False
            return [*self._lose_sight(rejection.reason), *self._release()]
        for stream, gap in rejection.streams.items():
            if unclaimed or gap.reason == GapReason.PARTIAL:
                self._note_tip(stream, gap)
        if unclaimed:
            # Our request and this notice crossed. Its answer will join up; what is above must wait for it.
            return []
        gaps = [self._gap(stream, gap) for stream, gap in rejection.streams.items() if not self._is_known(stream, gap)]
        # A partial answer has no hole behind it: asking again brings what follows.
        self._partial = self._partial or any(gap.reason == GapReason.PARTIAL for gap in gaps)
        return [gap for gap in gaps if gap.reason != GapReason.PARTIAL]

    def _note_tip(self, stream: str, gap: StreamGap) -> None:
        """Where live delivery began. A second rejection does not move that, unless the stream began anew."""
        if gap.epoch and (stream not in self._tips or self._tips[stream].epoch != gap.epoch):
            self._tips[stream] = Position(gap.epoch, gap.tip)

    def _is_known(self, stream: str, gap: StreamGap) -> bool:
        """Whether everything up to where the gap ends was seen, because it came while the request was under way; or was
        yielded as a Gap, and the stream begins now."""
        known = self.positions.get(stream)
        if stream in self._gone and gap.epoch and gap.reason == GapReason.EPOCH_CHANGED and gap.oldest == 1:
            self._gone.discard(stream)
            self.positions[stream] = Position(gap.epoch, 0)
            return True
        trimmed = gap.reason == GapReason.TRIMMED and gap.epoch != ""
        return trimmed and known is not None and known.epoch == gap.epoch and known.offset >= gap.oldest - 1

    def _gap(self, stream: str, gap: StreamGap) -> Gap:
        known = self.positions.get(stream)
        if not gap.epoch:
            # It gives no position. Keep ours: the answer to the next request reports whether messages are missing.
            if gap.reason == GapReason.EPOCH_CHANGED:
                self._gone.add(stream)
            return Gap(stream, gap.reason, known)
        noted = self._tips.get(stream)
        tip = noted if noted is not None and noted.epoch == gap.epoch else Position(gap.epoch, gap.tip)
        # Ahead: we have seen everything up to the tip, and more than there is.
        below = tip.offset if gap.reason == GapReason.AHEAD else min(gap.oldest - 1, tip.offset)
        self.positions[stream] = Position(gap.epoch, below)
        return Gap(stream, gap.reason, known, gap.epoch, below + 1, gap.tip)

    def _lose_sight(self, reason: str) -> list[Message | Gap]:
        """The server does not say where its streams stand: the next live message of each is its new beginning."""
        gaps: list[Message | Gap] = [Gap(stream, reason, known) for stream, known in self.positions.items()]
        self.positions.clear()
        self.since = None
        return gaps or [Gap("", reason)]

    def _overtakes(self, data: Data) -> bool:
        tip = self._tips.get(data.stream)
        if tip is not None:
            return tip.epoch != data.epoch or data.offset > tip.offset
        known = self.positions.get(data.stream)
        if known is None or not self.asked:
            return False
        # While an answer is under way, what does not follow may be what the server held for us before it got our request.
        return known.epoch not in ("", data.epoch) or data.offset > known.offset + 1

    def _release(self) -> list[Message | Gap]:
        held, self._held, self._tips = self._held, [], {}
        # What was held before a rejection came may be of another place in its stream than what was held after it.
        first_seen = {life: place for place, life in reversed(list(enumerate(map(_epoch_of, held))))}
        held.sort(key=lambda data: (first_seen[_epoch_of(data)], data.offset))
        return [event for data in held for event in self._advance(data)]

    def _advance(self, data: Data) -> list[Message | Gap]:
        known = self.positions.get(data.stream)
        if known is not None and known.epoch == data.epoch and data.offset <= known.offset:
            return []
        self.positions[data.stream] = Position(data.epoch, data.offset)
        told = self._told(data)
        began = data.offset == 1 and data.stream in self._gone
        self._gone.discard(data.stream)
        # An empty epoch is a wish ("from the beginning"), not something that was seen.
        if began or known is None or known.epoch in ("", data.epoch):
            return told
        return [Gap(data.stream, GapReason.EPOCH_CHANGED.value, known, data.epoch), *told]

    def _told(self, data: Data) -> list[Message | Gap]:
        """The message, or in its place a gap of one if it cannot be decoded."""
        try:
            body = decode_payload(data.payload)
        except ValueError as error:
            logger.warning(
                "a message cannot be read", extra={"stream": data.stream, "offset": data.offset, "reason": str(error)}
            )
            before = Position(data.epoch, data.offset - 1)
            return [Gap(data.stream, UNREADABLE, before, data.epoch, data.offset + 1, data.offset)] if data.offset else []
        return [Message(body, data.stream, data.epoch, data.offset, data.type, self.asked)]


def _epoch_of(data: Data) -> tuple[str, str]:
    return data.stream, data.epoch
