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


class Replayer:
    def __init__(self, stats: Stats) -> None:
        self._stats = stats

    async def answer(
        self, link: Link, identifier: str, request: HistoryRequest, answers: Sequence[Steps], tips: Sequence[Tip] = ()
    ) -> None:
        """The streams' answers to one request: what joins up, `reject_history` for what does not, what is kept behind that."""
        gaps = [piece for answer in answers for piece in answer if isinstance(piece, Gap)]
        # Clients of the reference take a rejection as "nothing came", and a page that reloads then would do so for ever:
        # a request by time always finds its history trimmed again. So they are told with the confirmation.
        confirms = not link.codec.tells_positions and all(_by_time(gap, request) for gap in gaps)
        for row in zip_longest(*answers):
            pieces = [piece for piece in row if piece is not None]
            await self.send(link, identifier, [message for piece in pieces for message in piece.messages])
            if not confirms:
                self.reject(link, identifier, [piece for piece in pieces if isinstance(piece, Gap)])
        self._stats.replays += 1
        if not gaps or link.codec.tells_positions:
            link.send(link.codec.confirm_history(identifier, tips))
        elif confirms:
            self._count(gaps)
            link.send(link.codec.confirm_trimmed(identifier, gaps))

    async def send(self, link: Link, identifier: str, items: Iterable[Registered]) -> None:
        """In writes of a bounded size, each when the one before is taken: a long history costs time, not memory."""
        for write in self._writes(link, identifier, items):
            link.send(write)
            if len(write) >= WRITE_BYTES:
                await link.drained()

    def send_at_once(self, link: Link, identifier: str, items: Iterable[Registered]) -> None:
        """In one step of the event loop, for what is bounded already."""
        for write in self._writes(link, identifier, items):
            link.send(write)

    def reject(self, link: Link, identifier: str, gaps: Sequence[Gap]) -> None:
        if gaps:
            self._count(gaps)
            link.send(link.codec.messages.reject_history(identifier, gaps))

    def _count(self, gaps: Sequence[Gap]) -> None:
        for gap in gaps:
            self._stats.gaps[gap.reason] += 1

    def _writes(self, link: Link, identifier: str, items: Iterable[Registered]) -> Iterator[bytes]:
        codec = link.codec.messages
        head = codec.head(identifier)
        frames: list[bytes] = []
        size = 0
        for item in items:
            if item.exclude_socket in link.names:  # what a client was not meant to hear live it does not hear now either
                continue
            frames.append(codec.message(head, item))
            size += len(frames[-1])
            self._stats.replayed_messages += 1
            if size >= WRITE_BYTES:
                yield b"".join(frames)
                frames, size = [], 0
        yield b"".join(frames)


def _by_time(gap: Gap, request: HistoryRequest) -> bool:
    return gap.reason is GapReason.TRIMMED and gap.stream not in request.streams
