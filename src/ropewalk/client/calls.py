"""Pushes and history reads of a session over TCP, from the request to its answer. No I/O.

At most as many bytes of pushes are unanswered as the server allows. Pushes and reads without an answer are sent again on the
next connection: pushes have uids, so the server registers them once, and a read changes nothing.
"""

from collections import deque

from msgspec import Struct

from ropewalk.client.effects import CallAnswered, Effect, Retry, Send, WritePushes
from ropewalk.client.errors import (
    HistoryRefused,
    HistoryUnavailable,
    KeyRefused,
    PublicationRefused,
    PublishError,
    PublishUnavailable,
)
from ropewalk.client.events import Event, Gap, KeptMessages
from ropewalk.client.messages import decode_run
from ropewalk.model.history import GapReason
from ropewalk.model.messages import Position
from ropewalk.protocol.broky import frames
from ropewalk.protocol.broky.frames import Reason, Run

GAP_REASONS = {
    Reason.TRIMMED: GapReason.TRIMMED.value,
    Reason.EPOCH_CHANGED: GapReason.EPOCH_CHANGED.value,
    Reason.AHEAD: GapReason.AHEAD.value,
    Reason.SLOW: GapReason.DROPPED.value,
}

MAX_REF = 2**32 - 1

CallAnswer = frames.Welcome | frames.Pushed | frames.Refused | frames.HistoryPage | frames.Pong | frames.Error | Run


class _Push(Struct):
    """`failures`: attempts without a registration. `wanted`: the caller still waits."""

    ref: int
    frame: bytes
    failures: int = 0
    wanted: bool = True


class PushWindow:
    """The pushes that are sent, queued or waiting for a retry. While disconnected, all wait. Methods return what to write."""

    def __init__(self) -> None:
        self._limit = 0
        self._sent: dict[int, _Push] = {}
        self._queued: deque[_Push] = deque()
        self._retrying: dict[int, _Push] = {}
        self._unanswered_bytes = 0

    def __len__(self) -> int:
        return len(self._sent) + len(self._queued) + len(self._retrying)

    def add(self, ref: int, frame: bytes) -> list[bytes]:
        self._queued.append(_Push(ref, frame))
        return self._sendable()

    def opened(self, limit: int) -> list[bytes]:
        """A connection is open, and allows so many unanswered bytes."""
        self._limit = max(limit, 1)
        return self._sendable()

    def lost(self) -> None:
        """The connection is lost: unanswered pushes are sent first on the next one."""
        self._queued.extendleft(reversed([push for push in self._sent.values() if push.wanted]))
        self._sent.clear()
        self._limit = self._unanswered_bytes = 0

    def attempt_failed(self, max_attempts: int) -> list[int]:
        """The server could not be reached. Returns the refs of the pushes that have no attempts left."""
        unsent = (*self._queued, *self._retrying.values())
        for push in unsent:
            push.failures += 1
        ended = [push.ref for push in unsent if push.failures >= max_attempts]
        for ref in ended:
            self.discard(ref)
        return ended

    def answered(self, ref: int) -> list[bytes]:
        push = self._sent.pop(ref, None)
        if push is not None:
            self._unanswered_bytes -= len(push.frame)
        return self._sendable()

    def suspend(self, ref: int) -> int:
        """The server cannot register it now; send it again with `retry`. Returns its failed attempts, 0 if it is not wanted."""
        push = self._sent.pop(ref, None)
        if push is None or not push.wanted:
            return 0
        self._unanswered_bytes -= len(push.frame)
        self._retrying[ref] = push
        push.failures += 1
        return push.failures

    def retry(self, ref: int) -> list[bytes]:
        push = self._retrying.pop(ref, None)
        if push is not None:
            self._queued.append(push)
        return self._sendable()

    def discard(self, ref: int) -> None:
        """The caller has given up: the push is not sent again."""
        if ref in self._sent:
            self._sent[ref].wanted = False
        elif self._retrying.pop(ref, None) is None:
            self._queued = deque(push for push in self._queued if push.ref != ref)

    def discard_all(self) -> None:
        for push in self._sent.values():
            push.wanted = False
        self._queued.clear()
        self._retrying.clear()

    def _sendable(self) -> list[bytes]:
        written: list[bytes] = []
        while self._queued and self._limit:
            push = self._queued[0]
            if self._sent and self._unanswered_bytes + len(push.frame) > self._limit:
                break
            self._queued.popleft()
            self._sent[push.ref] = push
            self._unanswered_bytes += len(push.frame)
            written.append(push.frame)
        return written


class _Read(Struct):
    """`runs`: the messages received on this connection."""

    stream: str
    request: frames.History
    after: Position
    runs: list[Run]


class TcpCalls:
    """Pushes and reads by ref. `error`: the server's last error frame on this connection, as producers get it."""

    def __init__(self) -> None:
        self.pushes = PushWindow()
        self.error: PublishError | None = None
        self._connected = False
        self._reads: dict[int, _Read] = {}
        self._ref = 0

    def next_ref(self) -> int:
        """Unique among all pushes, reads, pings and subscriptions: answers contain nothing else."""
        self._ref = self._ref % MAX_REF + 1
        return self._ref

    def push(self, ref: int, frame: bytes) -> list[Effect]:
        return _write(self.pushes.add(ref, frame))

    def retry(self, ref: int) -> list[Effect]:
        return _write(self.pushes.retry(ref))

    def read(self, ref: int, stream: str, name: bytes, after: Position, limit: int) -> list[Effect]:
        """`name`: what the request contains, the key of the stream or its signed name."""
        request = frames.History(ref, name, after.epoch.encode(), after.offset, limit)
        self._reads[ref] = _Read(stream, request, after, [])
        return [Send(request)] if self._connected else []

    def discard_read(self, ref: int) -> None:
        self._reads.pop(ref, None)

    def lost(self) -> None:
        self._connected = False
        self.pushes.lost()
        for read in self._reads.values():
            read.runs.clear()

    def receive(self, body: CallAnswer) -> list[Effect]:
        match body:
            case Run(ref=ref):
                if ref in self._reads:
                    self._reads[ref].runs.append(body)
                return []
            case frames.Pushed():
                return self._pushed(body)
            case frames.Refused():
                return self._refused(body)
            case frames.HistoryPage(ref):
                read = self._reads.pop(ref, None)
                return [] if read is None else [CallAnswered(ref, _page(read, body))]
            case frames.Pong(ref):
                return [CallAnswered(ref, None)]
            case frames.Welcome(max_unacked=limit):
                self._connected, self.error = True, None
                return [*(Send(read.request) for read in self._reads.values()), *_write(self.pushes.opened(limit))]
            case frames.Error(reason, text):
                self.error = push_error(reason, text or reason.name.lower())
                return []

    def _pushed(self, pushed: frames.Pushed) -> list[Effect]:
        effects: list[Effect] = []
        at = 0
        for ref, offset in zip(pushed.refs, pushed.offsets, strict=False):
            end = at + 1 + (pushed.epochs[at] if at < len(pushed.epochs) else 0)
            effects.append(CallAnswered(ref, Position(pushed.epochs[at + 1 : end].decode("utf-8", "replace"), offset)))
            effects += _write(self.pushes.answered(ref))
            at = end
        return effects

    def _refused(self, refused: frames.Refused) -> list[Effect]:
        read = self._reads.pop(refused.ref, None)
        if read is not None:
            kind = HistoryUnavailable if refused.reason is Reason.UNAVAILABLE else HistoryRefused
            return [CallAnswered(refused.ref, kind(read.stream, refused.text))]
        error = push_error(refused.reason, refused.text, refused.index)
        if isinstance(error, PublishUnavailable):
            failures = self.pushes.suspend(refused.ref)
            return [Retry(refused.ref, failures, error)] if failures else []
        return [CallAnswered(refused.ref, error), *_write(self.pushes.answered(refused.ref))]


def push_error(reason: Reason, text: str, index: int = 0) -> PublishError:
    match reason:
        case Reason.FORBIDDEN | Reason.UNAUTHORIZED:
            return KeyRefused(text)
        case Reason.UNAVAILABLE:
            return PublishUnavailable(text)
        case _:
            return PublicationRefused(text, index)


def _write(pushes: list[bytes]) -> list[Effect]:
    return [WritePushes(pushes)] if pushes else []


def _page(read: _Read, page: frames.HistoryPage) -> KeptMessages:
    epoch = page.epoch.decode()
    events: list[Event] = [] if page.reason is Reason.NONE else [_gap(read, page, epoch)]
    for run in read.runs:
        replayed = 0 < run.offset <= page.tip and run.epoch == page.epoch
        events += decode_run(run, read.stream, run.epoch.decode(), replayed)
    known = read.after if read.after.epoch else None  # the position is kept if the server does not know the stream
    return KeptMessages(events, Position(epoch, page.last) if epoch else known, page.oldest, page.tip)


def _gap(read: _Read, page: frames.HistoryPage, epoch: str) -> Gap:
    """The page does not follow the requested position. A requested offset without an epoch is one of the present epoch."""
    reason = GAP_REASONS.get(page.reason, "")
    known = Position(read.after.epoch or epoch, read.after.offset)
    if not epoch:
        return Gap(read.stream, reason, known)
    resumes_at = read.runs[0].offset if read.runs else page.last + 1
    return Gap(read.stream, reason, known, epoch, resumes_at, page.tip)
