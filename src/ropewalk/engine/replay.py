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
from ropewalk.model.messages import Deliverable, Registered
from ropewalk.protocol.codec import MessageCodec

WRITE_BYTES = 65536
PIECE_BYTES = 8192
SHORT_MESSAGES, SHORT_BYTES, SHORT_REPLAYS = 64, 8192, 64
"""Messages and bytes of payload in a short piece of history, and how many such pieces are kept."""


class ShortReplays:
    """Short pieces of history as they go on the wire, encoded once for all who ask for the same. After an outage everybody
    does, for everybody stopped at the same message. The oldest is forgotten for a new one."""

    def __init__(self) -> None:
        self._kept: dict[tuple[MessageCodec, str, str, str, int, int], bytes] = {}

    def frames(self, link: Link, identifier: str, messages: Sequence[Registered]) -> bytes | None:
        """None for what is long, has holes, or is not for everybody."""
        if not messages:
            return b""
        codec, first, last = link.codec.messages, messages[0], messages[-1]
        if last.offset - first.offset + 1 != len(messages):
            return None
        key = codec, identifier, first.stream, first.epoch, first.offset, last.offset
        if (kept := self._kept.get(key)) is not None:
            return kept
        if len(messages) > SHORT_MESSAGES or sum(len(message.payload) for message in messages) > SHORT_BYTES:
            return None
        if any(message.exclude_socket for message in messages):
            return None
        head = codec.head(identifier)
        encoded = codec.batch(head, messages)
        if len(encoded) <= WRITE_BYTES:  # each message carries the identifier, which may be long
            if len(self._kept) == SHORT_REPLAYS:
                del self._kept[next(iter(self._kept))]
            self._kept[key] = encoded
        return encoded


class Replayer:
    def __init__(self, stats: Stats) -> None:
        self._stats = stats
        self._short = ShortReplays()

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
        # a request by time always finds its history trimmed again. So they are told with the confirmation, unless a stream's
        # rule rejects such requests.
        confirms = not link.codec.tells_positions and all(
            _by_time(gap, request) and not link.rejects_since(gap.stream) for gap in gaps
        )
        waiting = [first]
        for row in zip_longest(*answers):
            pieces = [piece for piece in row if piece is not None]
            for piece in pieces:
                waiting = await self._write(link, self._frames_of(link, identifier, piece.messages), waiting)
            missing = [piece for piece in pieces if isinstance(piece, Gap)]
            if missing and not confirms:
                waiting.append(self._rejection(link, identifier, missing))
        self._stats.replays += 1
        if not gaps or link.codec.tells_positions:
            waiting.append(link.codec.confirm_history(identifier, tips))
        elif confirms:
            self._count(gaps)
            waiting.append(link.codec.confirm_trimmed(identifier, gaps))
        link.send(b"".join(waiting))

    async def send(self, link: Link, identifier: str, items: Iterable[Deliverable | Gap]) -> None:
        """In writes of a bounded size, each when the one before is taken: a long history costs time, not memory."""
        link.send(b"".join(await self._write(link, self._frames_with_gaps(link, identifier, items), [])))

    def send_at_once(self, link: Link, identifier: str, items: Iterable[Deliverable | Gap]) -> None:
        """In one step of the event loop, for what is bounded already."""
        link.send(b"".join(self._frames_with_gaps(link, identifier, items)))

    def reject(self, link: Link, identifier: str, gaps: Sequence[Gap]) -> None:
        if gaps:
            link.send(self._rejection(link, identifier, gaps))

    def _rejection(self, link: Link, identifier: str, gaps: Sequence[Gap]) -> bytes:
        self._count(gaps)
        return link.codec.messages.reject_history(identifier, gaps)

    def _count(self, gaps: Sequence[Gap]) -> None:
        for gap in gaps:
            self._stats.gaps[gap.reason] += 1

    async def _write(self, link: Link, frames: Iterable[bytes], waiting: list[bytes]) -> list[bytes]:
        """Put frames behind those that wait, and write whatever is enough for a write: each is a call of the system, and
        mostly a packet. Returns what waits now."""
        size = sum(map(len, waiting))
        for frame in frames:
            waiting.append(frame)
            size += len(frame)
            if size >= WRITE_BYTES:
                link.send(b"".join(waiting))
                waiting, size = [], 0
                await link.drained()
        return waiting

    def _frames_of(self, link: Link, identifier: str, messages: Sequence[Registered]) -> Iterable[bytes]:
        short = self._short.frames(link, identifier, messages)
        if short is None:
            return self._frames(link, identifier, messages)
        self._stats.replayed_messages += len(messages)
        return (short,)

    def _frames_with_gaps(self, link: Link, identifier: str, items: Iterable[Deliverable | Gap]) -> Iterator[bytes]:
        """Messages, and a rejection at each gap among them."""
        messages: list[Deliverable] = []
        for item in items:
            if isinstance(item, Gap):
                yield from self._frames(link, identifier, messages)
                messages = []
                yield self._rejection(link, identifier, [item])
            else:
                messages.append(item)
        yield from self._frames(link, identifier, messages)

    def _frames(self, link: Link, identifier: str, items: Iterable[Deliverable]) -> Iterator[bytes]:
        """In pieces of some messages, which a codec may write as one."""
        encode, names, stats = link.codec.messages.batch, link.names, self._stats
        head = link.codec.messages.head(identifier)
        piece: list[Deliverable] = []
        stream, size = "", 0
        for item in items:
            if item.exclude_socket in names:  # what a client was not meant to hear live it does not hear now either
                continue
            if piece and (size >= PIECE_BYTES or item.stream != stream):
                yield encode(head, piece)
                piece, size = [], 0
            stats.replayed_messages += item.count
            piece.append(item)
            stream, size = item.stream, size + item.size
        if piece:
            yield encode(head, piece)


def _by_time(gap: Gap, request: HistoryRequest) -> bool:
    return gap.reason is GapReason.TRIMMED and gap.stream not in request.streams
