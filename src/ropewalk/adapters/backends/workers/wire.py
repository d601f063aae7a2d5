"""The bus between the workers of a node and its store: frames over a Unix socket, and the calls that go over it.

Invariant: a frame is its length in four bytes and a msgpack array. What one side sends arrives in the same order. A call is
answered once, unless the connection ends before.

```
worker → store    [CALL, id, method, arguments]     [NOTE, 0, method, arguments]
store → worker    [ANSWER, id, "", result]          [FAILURE, id, kind, what it says]
store → worker    [NOTE, 0, "deliver" | "runs" | "order", …] [CALL, id, "obey" | "release", …], which the worker answers
```
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, cast

import msgspec
from msgspec import Raw, Struct

from ropewalk.model import errors
from ropewalk.model.history import Gap, GapReason, HistoryPage, Replay, StreamSummary, split_at_gaps
from ropewalk.model.journal import Row
from ropewalk.model.messages import Position, Publication, Receipt, Registered, RemoteDisconnect, TransientRun
from ropewalk.model.presence import Member, PresenceEvent, PresencePage
from ropewalk.model.ring import Possession, RingNews
from ropewalk.model.sessions import Renewal, SessionSnapshot, SessionTaken, SessionWanted, SessionWrite
from ropewalk.protocol.broky.forwarding import take_apart

logger = logging.getLogger("ropewalk.workers")

CALL, ANSWER, FAILURE, NOTE = range(4)

LENGTH_BYTES = 4
MAX_FRAME_BYTES = 1 << 30
MAX_BUFFERED_BYTES = 64 * 1024 * 1024
"""Bytes that may wait for the other side to read them. Past that the connection is closed: whoever comes back looks for what it
has missed."""

MUCH_BUFFERED, LITTLE_BUFFERED = 1024 * 1024, 256 * 1024
"""When the other side counts as behind, and when no more."""


class HistoryPiece(Struct, frozen=True, array_like=True):
    """A `Replay`, or a `Gap` if it has a reason. What follows a gap is the next piece."""

    stream: str
    epoch: str
    tip: int
    messages: tuple[Registered, ...] = ()
    reason: str = ""
    oldest: int = 0
    more: bool = False


class CarriedRun(Struct, frozen=True, array_like=True, gc=False):
    """A `TransientRun` without what takes it apart."""

    stream: str
    frame: bytes
    count: int
    timestamp: float
    ordered: bool


HistoryPieces = list[HistoryPiece]
EndedSessions = list[tuple[str, SessionSnapshot]]

METHODS: dict[str, tuple[Any, Any]] = {
    # name: types of the arguments, type of the result
    "hello": (tuple[str], bool),
    "append": (tuple[list[Publication]], list[Receipt]),
    "replay": (tuple[str, Position], HistoryPieces),
    "since": (tuple[str, float], HistoryPieces),
    "tip": (tuple[str], Position),
    "partition_key": (tuple[str], str),
    "summaries": (tuple[str, int], list[StreamSummary]),
    "page": (tuple[str, int, int], HistoryPage | None),
    "save": (tuple[str, SessionSnapshot, float], None),
    "peek": (tuple[str], SessionSnapshot | None),
    "take": (tuple[str, str], SessionSnapshot | None),
    "revoke": (tuple[str, bool], EndedSessions),
    "expired": (tuple[int], EndedSessions),
    "abandoned": (tuple[int, bool], EndedSessions),
    "renew": (tuple[float, list[str]], Renewal),
    "write": (tuple[list[SessionWrite]], list[SessionTaken]),
    "join": (tuple[str, str, Member], list[PresenceEvent]),
    "leave": (tuple[str, str], list[PresenceEvent]),
    "detach": (tuple[str, float], None),
    "adopt": (tuple[str, str], dict[str, Member]),
    "expire": (tuple[()], list[PresenceEvent]),
    "members": (tuple[str, str, int], PresencePage),
    "listen": (tuple[list[str]], None),
    "listen_prefixes": (tuple[list[bytes]], None),
    "run": (tuple[list[CarriedRun]], None),
    "claim": (tuple[list[str]], None),
    "command": (tuple[RemoteDisconnect], int),
    "exchange": (tuple[bytes], bytes),
    # between nodes of a ring
    "news": (tuple[str, RingNews], RingNews),
    "news_but": (tuple[str], RingNews | None),
    "receive": (tuple[int, str, int, bytes], None),
    "received": (tuple[int, str, int, Possession], None),
    "write_passing": (tuple[list[SessionWrite]], list[SessionTaken]),
    "forget": (tuple[list[str]], None),
    "identity": (tuple[str], list[str]),
    "disconnect": (tuple[RemoteDisconnect], int),
    "revoke_own": (tuple[str, bool], EndedSessions),
    "end_rest": (tuple[list[str], bool], int),
    "told": (tuple[RingNews], None),
    "obey": (tuple[RemoteDisconnect], int),
    "release": (tuple[SessionWanted], int),
    # without an answer
    "unlisten": (tuple[str], None),
    "unlisten_prefix": (tuple[bytes], None),
    "tell": (tuple[list[Registered]], None),
    "rows": (tuple[list[Row]], None),
    "deliver": (tuple[list[Registered]], None),
    "runs": (tuple[list[CarriedRun]], None),
    "order": (tuple[SessionTaken], None),
}

_ENVELOPE = msgspec.msgpack.Decoder(tuple[int, int, str, Raw])
_ARGUMENTS = {name: msgspec.msgpack.Decoder(types[0]) for name, types in METHODS.items()}
_RESULTS = {name: msgspec.msgpack.Decoder(types[1]) for name, types in METHODS.items()}
_encode = msgspec.msgpack.Encoder().encode


def frame(kind: int, number: int, name: str, body: object) -> bytes:
    encoded = _encode((kind, number, name, body))
    return len(encoded).to_bytes(LENGTH_BYTES, "little") + encoded


def arguments(method: str, body: Raw) -> Any:
    return _ARGUMENTS[method].decode(body)


def result(method: str, body: Raw) -> Any:
    return _RESULTS[method].decode(body)


def text(detail: Struct) -> str:
    return msgspec.json.encode(detail).decode()


# --- runs ------------------------------------------------------------------------------------------------------------


def carried(run: TransientRun) -> CarriedRun:
    return CarriedRun(run.stream, run.frame, run.count, run.timestamp, run.ordered)


def run_of(run: CarriedRun) -> TransientRun:
    return TransientRun(run.stream, run.frame, run.count, run.timestamp, take_apart, run.ordered)


# --- history ---------------------------------------------------------------------------------------------------------


def pieces(answer: Replay | Gap) -> HistoryPieces:
    return [
        HistoryPiece(each.stream, each.epoch, each.tip, each.messages, each.reason.value, each.oldest)
        if isinstance(each, Gap)
        else HistoryPiece(each.stream, each.epoch, each.tip, each.messages, more=each.more)
        for each in split_at_gaps(answer)
    ]


def history(found: Sequence[HistoryPiece]) -> Replay | Gap:
    answer: Replay | Gap | None = None
    for piece in reversed(found):
        if piece.reason:
            reason = GapReason(piece.reason)
            answer = Gap(piece.stream, reason, piece.epoch, piece.oldest, piece.tip, piece.messages, answer)
        else:
            answer = Replay(piece.stream, piece.epoch, piece.tip, piece.messages, piece.more)
    assert answer is not None
    return answer


# --- failures --------------------------------------------------------------------------------------------------------

_KINDS: dict[str, type[errors.RopewalkError]] = {
    "unanswered": errors.Unanswered,
    "moved": errors.Moved,
    "name taken": errors.NameTaken,
    "unavailable": errors.Unavailable,
    "limit": errors.LimitReached,
    "size": errors.TooLarge,
}


def failure_of(error: BaseException) -> tuple[str, object]:
    """The kind of a failure, and what is said with it."""
    if isinstance(error, errors.PartitionChanged):
        return "partition", (error.stream, error.named, error.kept)
    for kind, known in _KINDS.items():
        if isinstance(error, known):
            return kind, str(error)
    logger.error("the store failed at a call of a worker", exc_info=error)
    return "unavailable", "the store failed at this"


def error_of(kind: str, said: Raw) -> errors.RopewalkError:
    if kind == "partition":
        return errors.PartitionChanged(*msgspec.msgpack.decode(said, type=tuple[str, str, str]))
    return _KINDS[kind](msgspec.msgpack.decode(said, type=str))


# --- a connection ----------------------------------------------------------------------------------------------------


class BusConnection(asyncio.Protocol):
    """One end of the bus. `receive` is called for each frame, `lost` once at the end, `caught_up` when the other side has read
    what it was `behind` with."""

    def __init__(
        self,
        receive: "Callable[[BusConnection, int, int, str, Raw], None]",
        lost: "Callable[[BusConnection], None]",
        caught_up: Callable[[], None] = lambda: None,
    ) -> None:
        self._receive = receive
        self._lost = lost
        self._caught_up = caught_up
        self.behind = False
        self._transport: asyncio.Transport | None = None
        self._waiting = bytearray()  # the beginning of a frame
        self._needed = LENGTH_BYTES

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)
        transport.set_write_buffer_limits(MUCH_BUFFERED, LITTLE_BUFFERED)

    def pause_writing(self) -> None:
        self.behind = True

    def resume_writing(self) -> None:
        self.behind = False
        self._caught_up()

    def connection_lost(self, reason: Exception | None) -> None:
        self._transport, self.behind = None, False
        self._lost(self)
        self._caught_up()

    def data_received(self, data: bytes) -> None:
        if self._waiting:
            self._waiting += data
            if len(self._waiting) < self._needed:  # a large frame is put together once
                return
            data, self._waiting = bytes(self._waiting), bytearray()
        begin, size = 0, len(data)
        while size - begin >= LENGTH_BYTES:
            length = int.from_bytes(data[begin : begin + LENGTH_BYTES], "little")
            end = begin + LENGTH_BYTES + length
            if length > MAX_FRAME_BYTES:
                logger.error("the bus carries something that is no frame")
                self.close()
                return
            if end > size:
                break
            self._take(data[begin + LENGTH_BYTES : end])
            begin = end
        if begin < size:
            self._waiting += data[begin:]
            enough = size - begin >= LENGTH_BYTES
            self._needed = end - begin if enough else LENGTH_BYTES

    def _take(self, encoded: bytes) -> None:
        try:
            kind, number, name, body = _ENVELOPE.decode(encoded)
            self._receive(self, kind, number, name, body)
        except Exception:
            logger.exception("a frame of the bus cannot be handled")
            self.close()

    def send(self, encoded: bytes) -> None:
        """Now: the event loop writes what one tick brings with one call of the system, and nobody has to wait for the next."""
        transport = self._transport
        if transport is None:
            return
        if self.behind and transport.get_write_buffer_size() > MAX_BUFFERED_BYTES:
            logger.error("the other end of the bus does not read; closing the connection")
            self.close()
            return
        transport.write(encoded)

    @property
    def buffered(self) -> int:
        """Bytes that the other side has not read."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()
