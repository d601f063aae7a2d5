"""Sends history to a client: items in bounded writes, each gap in its place, and a confirmation at the end.

Invariant: a gap is reported before the messages that follow it, and no missing message goes unreported. A client that asked
for positions is told by `confirm_history` where every answer ends; other clients get what clients of the reference expect.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest

from ropewalk.core.stats import Stats
from ropewalk.engine.link import Link
from ropewalk.engine.subscription import Steps
from ropewalk.model.history import Gap, GapReason, HistoryRequest, Tip
from ropewalk.model.messages import Registered

WRITE_BYTES = 65536


class Writes:
    """Joins frames for one link into writes of a bounded size: each write is a call of the system, and mostly a packet."""

    __slots__ = ("_frames", "_link", "_size")

    def __init__(self, link: Link, first: bytes = b"") -> None:
        self._link = link
        self._frames = [first]
        self._size = len(first)

    def fill(self, frames: Iterator[bytes]) -> bool:
        """Take frames until there are enough for a write. True if it was written: the next should wait until it is taken."""
        waiting, size = self._frames, self._size
        for frame in frames:
            waiting.append(frame)
            size += len(frame)
            if size >= WRITE_BYTES:
                self.flush()
                return True
        self._size = size
        return False

    def add(self, frame: bytes) -> None:
        """One frame more, however many there are."""
        self._frames.append(frame)
        self._size += len(frame)

    def flush(self) -> None:
        self._link.send(b"".join(self._frames))
        self._frames, self._size = [], 0


class Replayer:
    def __init__(self, stats: Stats) -> None:
        self._stats = stats

    async def answer(
        self,
        link: Link,
        identifier: str,
        request: HistoryRequest,
        answers: Sequence[Steps],
        tips: Sequence[Tip] = (),
        first: bytes = b"",
    ) -> None:
        """The streams' answers to one request: what joins up, `reject_history` for what does not, what is kept behind that.

        `first` is said before them.
        """
        gaps = [piece for answer in answers for piece in answer if isinstance(piece, Gap)]
        # Clients of the reference take a rejection as "nothing came", and a page that reloads then would do so for ever:
        # a request by time always finds its history trimmed again. So they are told with the confirmation.
        confirms = not link.codec.tells_positions and all(_by_time(gap, request) for gap in gaps)
        writes = Writes(link, first)
        for row in zip_longest(*answers):
            pieces = [piece for piece in row if piece is not None]
            frames = self._frames(link, identifier, (message for piece in pieces for message in piece.messages))
            while writes.fill(frames):
                await link.drained()
            missing = [piece for piece in pieces if isinstance(piece, Gap)]
            if missing and not confirms:
                writes.add(self._rejection(link, identifier, missing))
        self._stats.replays += 1
        if not gaps or link.codec.tells_positions:
            writes.add(link.codec.confirm_history(identifier, tips))
        elif confirms:
            self._count(gaps)
            writes.add(link.codec.confirm_trimmed(identifier, gaps))
        writes.flush()

    async def send(self, link: Link, identifier: str, items: Iterable[Registered]) -> None:
        """In writes of a bounded size, each when the one before is taken: a long history costs time, not memory."""
        writes, frames = Writes(link), self._frames(link, identifier, items)
        while writes.fill(frames):
            await link.drained()
        writes.flush()

    def send_at_once(self, link: Link, identifier: str, items: Iterable[Registered]) -> None:
        """In one step of the event loop, for what is bounded already."""
        writes, frames = Writes(link), self._frames(link, identifier, items)
        while writes.fill(frames):
            pass
        writes.flush()

    def reject(self, link: Link, identifier: str, gaps: Sequence[Gap]) -> None:
        if gaps:
            link.send(self._rejection(link, identifier, gaps))

    def _rejection(self, link: Link, identifier: str, gaps: Sequence[Gap]) -> bytes:
        self._count(gaps)
        return link.codec.messages.reject_history(identifier, gaps)

    def _count(self, gaps: Sequence[Gap]) -> None:
        for gap in gaps:
            self._stats.gaps[gap.reason] += 1

    def _frames(self, link: Link, identifier: str, items: Iterable[Registered]) -> Iterator[bytes]:
        codec = link.codec.messages
        head = codec.head(identifier)
        for item in items:
            if item.exclude_socket in link.names:  # what a client was not meant to hear live it does not hear now either
                continue
            self._stats.replayed_messages += 1
            yield codec.message(head, item)


def _by_time(gap: Gap, request: HistoryRequest) -> bool:
    return gap.reason is GapReason.TRIMMED and gap.stream not in request.streams
