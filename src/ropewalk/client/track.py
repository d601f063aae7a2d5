"""What one subscription knows of its streams: which positions were seen, what to ask for, and what a rejection means.

The rule it keeps: a position is yielded once, positions rise, and what cannot come is said with a Gap.

After a rejection the server is live from the tips it named, and still keeps a part of what is below them. That part is asked
for, piece by piece if the server bounds its answers; until the answer is complete, what is above the tips is held back, so
that the order stays.
"""

import logging

import msgspec

from ropewalk.client.events import UNREADABLE, Gap, Message
from ropewalk.model.history import GapReason, HistoryRequest
from ropewalk.model.messages import Position
from ropewalk.model.nesting import TOO_DEEP, too_deep
from ropewalk.protocol.server_messages import Data, HistoryRejected, StreamGap

logger = logging.getLogger("ropewalk.client")


class Track:
    """The positions of one subscription. `since` is the program's wish for the streams that have none."""

    def __init__(self, since: float | None = None, positions: dict[str, Position] | None = None) -> None:
        self.since = since
        self.positions = dict(positions or {})
        self.asked = False
        self._tips: dict[str, Position] | None = None
        self._held: list[Data] = []

    @property
    def holds(self) -> bool:
        """A rejection was not yet made good by a complete answer."""
        return self._tips is not None

    def request(self, otherwise: float | None = None) -> HistoryRequest:
        """What to ask the server for now; the caller sends it. `otherwise` is the time to ask from if there was no wish."""
        self.asked = True
        done = self._tips or {}
        wanted = {stream: known for stream, known in self.positions.items() if done.get(stream) != known}
        return HistoryRequest(otherwise if self.since is None else self.since, wanted)

    def lost(self) -> None:
        """The connection is gone, and with it every answer; the next replay contains what was held."""
        self.asked = False
        self._tips = None
        self._held.clear()

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
        """A history request was answered in full. Returns what had to wait for that."""
        self.asked = False
        released = self._release()
        self.began(tips or {})
        return released

    def rejected(self, rejection: HistoryRejected) -> list[Message | Gap]:
        """What a rejection yields. Ask again if `holds` is true and nothing is `asked`."""
        if rejection.reason == GapReason.DROPPED:
            # Nobody asked: the server skipped to the newest message, which follows by itself.
            return [Gap(name, gap.reason, self.positions.get(name)) for name, gap in rejection.streams.items()]
        if rejection.reason == GapReason.UNCLAIMED and self.asked:
            # Our request and this notice crossed. Its answer will join up; only live messages must wait for it.
            self._note_tips(rejection.streams)
            return []
        self.asked = False
        if not rejection.streams:
            return [*self._lose_sight(rejection.reason), *self._release()]
        self._note_tips(rejection.streams)
        gaps = [self._gap(stream, gap) for stream, gap in rejection.streams.items()]
        # A partial answer has no hole behind it: asking again brings what follows.
        return [gap for gap in gaps if gap.reason != GapReason.PARTIAL]

    def _note_tips(self, streams: dict[str, StreamGap]) -> None:
        """Where live delivery began. A second rejection does not move that, unless the stream began anew."""
        tips = self._tips or {}
        for stream, gap in streams.items():
            if stream not in tips or tips[stream].epoch != gap.epoch:
                tips[stream] = Position(gap.epoch, gap.tip)
        self._tips = tips

    def _gap(self, stream: str, gap: StreamGap) -> Gap:
        known = self.positions.get(stream)
        tip = (self._tips or {})[stream]
        # Ahead: we have seen everything up to the tip, and more than there is.
        below = tip.offset if gap.reason == GapReason.AHEAD else min(gap.oldest - 1, tip.offset)
        self.positions[stream] = Position(gap.epoch, below)
        return Gap(stream, gap.reason, known, gap.epoch or None, below + 1, gap.tip)

    def _lose_sight(self, reason: str) -> list[Message | Gap]:
        """The server does not say where its streams stand: the next live message of each is its new beginning."""
        gaps: list[Message | Gap] = [Gap(stream, reason, known) for stream, known in self.positions.items()]
        self.positions.clear()
        self.since = None
        return gaps or [Gap("", reason)]

    def _overtakes(self, data: Data) -> bool:
        if self._tips is None:
            return False
        tip = self._tips.get(data.stream)
        return tip is None or tip.epoch != data.epoch or data.offset > tip.offset

    def _release(self) -> list[Message | Gap]:
        held, self._held, self._tips = self._held, [], None
        # A stream that the rejection did not name may have its replay and its live messages mixed up here.
        first_seen = {life: place for place, life in reversed(list(enumerate(map(_life, held))))}
        held.sort(key=lambda data: (first_seen[_life(data)], data.offset))
        return [event for data in held for event in self._advance(data)]

    def _advance(self, data: Data) -> list[Message | Gap]:
        known = self.positions.get(data.stream)
        if known is not None and known.epoch == data.epoch and data.offset <= known.offset:
            return []
        self.positions[data.stream] = Position(data.epoch, data.offset)
        told = self._told(data)
        # An empty epoch is a wish ("from the beginning"), not something that was seen.
        if known is None or known.epoch in ("", data.epoch):
            return told
        return [Gap(data.stream, GapReason.EPOCH_CHANGED, known, data.epoch), *told]

    def _told(self, data: Data) -> list[Message | Gap]:
        """The message, or in its place a gap of one if it cannot be decoded."""
        try:
            if too_deep(data.payload):
                raise ValueError(TOO_DEEP)
            body = msgspec.json.decode(data.payload)
        except ValueError as error:
            logger.warning(
                "a message cannot be read", extra={"stream": data.stream, "offset": data.offset, "reason": str(error)}
            )
            before = Position(data.epoch, data.offset - 1)
            return [Gap(data.stream, UNREADABLE, before, data.epoch, data.offset + 1, data.offset)] if data.offset else []
        return [Message(body, data.stream, data.epoch, data.offset, data.type, self.asked)]


def _life(data: Data) -> tuple[str, str]:
    return data.stream, data.epoch
