"""Sends history to a client: items in bounded writes, each gap in its place, and a confirmation at the end.

Invariant: a gap is reported before the messages that follow it, and no missing message goes unreported. Clients that asked for
positions get the end of every answer in `confirm_history`; other clients get the replies of the reference server.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest

from msgspec.structs import replace

from ropewalk.core.delivered import Delivered
from ropewalk.core.stats import Stats
from ropewalk.engine.link import Link
from ropewalk.engine.subscription import Steps, Subscription, with_sent
from ropewalk.engine.waiting_history import WaitingHistory
from ropewalk.model.history import (
    Gap,
    GapReason,
    HistoryRequest,
    Replay,
    Tip,
    last_offset,
    memory_bytes,
    split_at_gaps,
    truncate_answer,
)
from ropewalk.model.messages import Deliverable, Position, Registered
from ropewalk.protocol.codec import MessageCodec

HistoryAnswer = Replay | Gap


class Reading:
    """The history of one stream for one client, page by page.

    Invariant: it ends at the tip of the first page. If the stream begins a new epoch meanwhile, a gap marks the place, and the
    history ends at the tip of the first page of the new epoch.

    Args:
        archived: maximum number of archived messages; a PARTIAL gap follows them.
        unread: `answer` has only the tip. The first page is still to be read.

    Attributes:
        answer: the last page.
        pieces: the parts of it to send to the client.
        delivered: what the client has once they are sent.
        reached: the last position read.
        more: messages follow `reached`.
    """

    __slots__ = ("_archived", "answer", "delivered", "more", "pieces", "reached", "stream", "unread")

    answer: HistoryAnswer
    pieces: Steps
    more: bool

    def __init__(self, answer: HistoryAnswer, archived: int, unread: bool = False) -> None:
        self.stream = answer.stream
        self.unread = unread
        self._archived = archived
        self.delivered = Delivered(answer.epoch, answer.tip + 1)
        self._set(answer)
        self.more = self.more or unread

    @property
    def tip(self) -> Position:
        return Position(self.answer.epoch, self.answer.tip)

    @property
    def size(self) -> int:
        """Bytes of the last answer."""
        return sum(memory_bytes(piece.messages) for piece in self.pieces)

    def release(self) -> None:
        """Free the messages of the last answer, which were sent."""
        self.pieces = []
        answer = self.answer
        self.answer = replace(answer, messages=(), rest=None) if isinstance(answer, Gap) else replace(answer, messages=())

    def take(self, answer: HistoryAnswer) -> None:
        self.unread = False
        if answer.epoch == self.answer.epoch:
            answer = truncate_answer(answer, self.answer.tip)
        else:
            self.delivered = Delivered(answer.epoch, answer.tip + 1)
        self._set(answer)

    def _set(self, answer: HistoryAnswer) -> None:
        self.answer = answer
        self.pieces = split_at_gaps(answer)
        self.reached = Position(answer.epoch, last_offset(answer))
        self.more = self.reached.offset < answer.tip
        last = self.pieces[-1]
        if isinstance(last, Gap) and last.reason is GapReason.PARTIAL:
            self._count_archived(last)
        if isinstance(answer, Gap) or answer.messages:
            self.delivered = with_sent(self.delivered, self.pieces)

    def _count_archived(self, last: Gap) -> None:
        messages = last.messages[: self._archived]
        self._archived -= len(messages)
        self.more = self._archived > 0
        if self.more:
            self.pieces[-1] = Replay(last.stream, last.epoch, last.tip, messages)
        else:
            self.pieces[-1] = replace(last, oldest=messages[-1].offset + 1, messages=messages)

    def take_unsent(self, subscription: Subscription) -> Steps:
        """As `Subscription.take_unsent`. Skips pages with messages that come live or that the subscription has no record of."""
        pieces = subscription.take_unsent(self.pieces)
        known = subscription.find_delivered(self.stream)
        if known is None or self.reached.offset + 1 >= known.live_from:
            self.more = False
        elif known.horizon > self.reached.offset:
            self.reached = Position(self.reached.epoch, known.horizon)
        return pieces


WRITE_BYTES = 65536
PIECE_BYTES = 8192
SHORT_MESSAGES, SHORT_BYTES, SHORT_REPLAYS = 64, 8192, 64
"""Limits of a short piece of history (messages, bytes of payload), and the size of its cache."""


class ShortReplays:
    """Cache of encoded short pieces of history, shared by all clients that request the same messages. After an outage most
    clients do, because they stopped at the same message. The oldest entry is evicted."""

    def __init__(self) -> None:
        self._kept: dict[tuple[MessageCodec, str, str, str, int, int], bytes] = {}

    def frames(self, link: Link, identifier: str, messages: Sequence[Registered]) -> bytes | None:
        """None if the piece is long, has holes, or excludes a client."""
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
    def __init__(self, stats: Stats, waiting: WaitingHistory) -> None:
        self._stats = stats
        self._waiting = waiting
        self._short = ShortReplays()

    async def send(self, link: Link, identifier: str, items: Iterable[Deliverable | Gap]) -> None:
        """Send in writes of bounded size, each after the client took the one before. So a long history takes little memory."""
        link.send(b"".join(await self.write(link, self._frames_with_gaps(link, identifier, items), [])))

    def send_at_once(self, link: Link, identifier: str, items: Iterable[Deliverable | Gap]) -> None:
        """Send in one step of the event loop. For items of bounded size."""
        link.send(b"".join(self._frames_with_gaps(link, identifier, items)))

    def reject(self, link: Link, identifier: str, gaps: Sequence[Gap]) -> None:
        if gaps:
            link.send(self.rejection(link, identifier, gaps))

    def rejection(self, link: Link, identifier: str, gaps: Sequence[Gap]) -> bytes:
        self.count(gaps)
        return link.codec.messages.reject_history(identifier, gaps)

    def count(self, gaps: Sequence[Gap]) -> None:
        for gap in gaps:
            self._stats.gaps[gap.reason] += 1

    async def write(
        self, link: Link, frames: Iterable[bytes], waiting: list[bytes], held: Sequence[Replay | Gap] = ()
    ) -> list[bytes]:
        """Append frames to the waiting ones and write them in blocks of `WRITE_BYTES`, to save system calls and packets.
        Returns the frames that still wait. The messages of `held` are counted as pending memory while the client is slow."""
        size = sum(map(len, waiting))
        for frame in frames:
            waiting.append(frame)
            size += len(frame)
            if size >= WRITE_BYTES:
                link.send(b"".join(waiting))
                await self._waiting.drained(link, [piece.messages for piece in held], size)
                waiting, size = [], 0
        return waiting

    def encode(self, link: Link, identifier: str, messages: Sequence[Registered]) -> Iterable[bytes]:
        short = self._short.frames(link, identifier, messages)
        if short is None:
            return self._frames(link, identifier, messages)
        self._stats.replayed_messages += len(messages)
        return (short,)

    def _frames_with_gaps(self, link: Link, identifier: str, items: Iterable[Deliverable | Gap]) -> Iterator[bytes]:
        """Encode messages, with a rejection at each gap."""
        messages: list[Deliverable] = []
        for item in items:
            if isinstance(item, Gap):
                yield from self._frames(link, identifier, messages)
                messages = []
                yield self.rejection(link, identifier, [item])
            else:
                messages.append(item)
        yield from self._frames(link, identifier, messages)

    def _frames(self, link: Link, identifier: str, items: Iterable[Deliverable]) -> Iterator[bytes]:
        """Encode messages in pieces, which a codec may write as one frame."""
        encode, names, stats = link.codec.messages.batch, link.names, self._stats
        head = link.codec.messages.head(identifier)
        piece: list[Deliverable] = []
        stream, size = "", 0
        for item in items:
            if item.exclude_socket in names:  # excluded from history as from live delivery
                continue
            if piece and (size >= PIECE_BYTES or item.stream != stream):
                yield encode(head, piece)
                piece, size = [], 0
            stats.replayed_messages += item.count
            piece.append(item)
            stream, size = item.stream, size + item.size
        if piece:
            yield encode(head, piece)


class RequestedHistory:
    """The answer to one request, page by page. `first` is sent before it."""

    def __init__(
        self, replayer: Replayer, stats: Stats, link: Link, identifier: str, request: HistoryRequest, first: bytes = b""
    ) -> None:
        self._replayer = replayer
        self._stats = stats
        self._link = link
        self._identifier = identifier
        self._request = request
        self._waiting = [first]
        self._gaps: list[Gap] = []
        self._unreported: list[Gap] = []
        # Clients of the reference server treat a rejection as "no history". A page that then reloads would loop, because a
        # request by time finds its history trimmed again. So the confirmation reports such gaps, unless a rule rejects them.
        self._confirms = not link.codec.reports_positions

    async def add(self, pages: Sequence[Steps]) -> None:
        """Send one page per stream: the messages up to a gap, `reject_history` for the gap, and the messages after it."""
        gaps = [piece for page in pages for piece in page if isinstance(piece, Gap)]
        self._gaps += [replace(gap, messages=(), rest=None) for gap in gaps]
        self._confirms = self._confirms and all(
            _by_time(gap, self._request) and not self._link.rejects_since(gap.stream) for gap in gaps
        )
        held = [piece for page in pages for piece in page]
        for row in zip_longest(*pages):
            pieces = [piece for piece in row if piece is not None]
            for piece in pieces:
                frames = self._replayer.encode(self._link, self._identifier, piece.messages)
                self._waiting = await self._replayer.write(self._link, frames, self._waiting, held)
            self._report([piece for piece in pieces if isinstance(piece, Gap)])

    def _report(self, missing: list[Gap]) -> None:
        self._unreported += missing
        if self._unreported and not self._confirms:
            self._waiting.append(self._replayer.rejection(self._link, self._identifier, self._unreported))
            self._unreported = []

    def end(self, tips: Sequence[Tip] = ()) -> None:
        """Confirm the history. `tips`: the positions at which live delivery continues."""
        codec = self._link.codec
        self._stats.replays += 1
        if not self._gaps or codec.reports_positions:
            self._waiting.append(codec.confirm_history(self._identifier, tips))
        elif self._confirms:
            self._replayer.count(self._gaps)
            self._waiting.append(codec.confirm_trimmed(self._identifier, self._gaps))
        self._link.send(b"".join(self._waiting))

    def give_up(self) -> None:
        """Reject the rest: the store stopped answering."""
        self._waiting.append(self._link.codec.messages.reject_history(self._identifier, ()))
        self._link.send(b"".join(self._waiting))


def _by_time(gap: Gap, request: HistoryRequest) -> bool:
    return gap.reason is GapReason.TRIMMED and gap.stream not in request.streams
