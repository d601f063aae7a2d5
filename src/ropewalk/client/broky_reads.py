"""Reads of history under way over TCP: what was asked, what came of each, and what its end says. No I/O.

A read changes nothing at the server, so one that a lost connection left without an answer is asked again on the next one.
"""

from msgspec import Struct

from ropewalk.client.broky_messages import NOWHERE, events_of
from ropewalk.client.broky_track import REASONS
from ropewalk.client.errors import HistoryRefused, HistoryUnavailable
from ropewalk.client.events import Event, Gap, KeptMessages
from ropewalk.model.messages import Position
from ropewalk.protocol.broky import frames
from ropewalk.protocol.broky.frames import Reason, Run


class _Read(Struct):
    """`runs`: what has come on this connection."""

    stream: str
    request: frames.History
    after: Position
    runs: list[Run]


class HistoryReads:
    def __init__(self) -> None:
        self._reads: dict[int, _Read] = {}

    def add(self, ref: int, stream: str, asked: bytes, after: Position | None, limit: int) -> frames.History:
        """`asked` is the key as the server wants it: a signed name, or that of `stream`."""
        position = after or NOWHERE
        request = frames.History(ref, asked, position.epoch.encode(), position.offset, limit)
        self._reads[ref] = _Read(stream, request, position, [])
        return request

    def requests(self) -> list[frames.History]:
        """What to ask a server that knows nothing of them."""
        return [read.request for read in self._reads.values()]

    def lost(self) -> None:
        """The connection is gone, and with it what came of the answers."""
        for read in self._reads.values():
            read.runs.clear()

    def forget(self, ref: int) -> None:
        """Nobody waits for it any more."""
        self._reads.pop(ref, None)

    def arrived(self, run: Run) -> None:
        read = self._reads.get(run.ref)
        if read is not None:
            read.runs.append(run)

    def ended(self, page: frames.HistoryPage) -> KeptMessages | None:
        """The answer is complete. None: nobody waits for it."""
        read = self._reads.pop(page.ref, None)
        return None if read is None else _kept(read, page)

    def refused(self, refused: frames.Refused) -> HistoryRefused | HistoryUnavailable | None:
        """None: it is no read that was refused."""
        read = self._reads.pop(refused.ref, None)
        if read is None:
            return None
        kind = HistoryUnavailable if refused.reason is Reason.UNAVAILABLE else HistoryRefused
        return kind(read.stream, refused.text)


def _kept(read: _Read, page: frames.HistoryPage) -> KeptMessages:
    epoch = page.epoch.decode()
    events: list[Event] = []
    if page.reason is not Reason.NONE:
        events.append(_gap(read, page, epoch))
    tip = Position(epoch, page.tip)
    for run in read.runs:
        events += events_of(run, read.stream, tip)
    known = read.after if read.after.epoch else None  # of a stream that the server does not know we keep the position
    return KeptMessages(events, Position(epoch, page.last) if epoch else known, page.oldest, page.tip)


def _gap(read: _Read, page: frames.HistoryPage, epoch: str) -> Gap:
    """What came does not follow the position that was asked for. An offset without an epoch was one of the present epoch."""
    reason = REASONS.get(page.reason, "")
    known = Position(read.after.epoch or epoch, read.after.offset)
    if not epoch:
        return Gap(read.stream, reason, known)
    onward = read.runs[0].offset if read.runs else page.last + 1
    return Gap(read.stream, reason, known, epoch, onward, page.tip)
