"""The bus between the workers of a node and its store: frames over a Unix socket.

Invariant: a frame is its length in four bytes and a msgpack array. What one side sends arrives in the same order. A call is
answered once, unless the connection ends before.

```
worker → store    [CALL, id, method, arguments]     [NOTE, 0, method, arguments]
store → worker    [ANSWER, id, "", result]          [FAILURE, id, kind, text]
store → worker    [NOTE, 0, method, arguments]     [CALL, id, method, arguments]     which the worker answers
```

An empty frame is a heartbeat, between nodes of a ring.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import cached_property
from typing import cast

import msgspec
from msgspec import Raw, Struct

from ropewalk.model import errors
from ropewalk.model.messages import TransientRun
from ropewalk.protocol.broky.forwarding import take_apart

logger = logging.getLogger("ropewalk.workers")

CALL, ANSWER, FAILURE, NOTE = range(4)

LENGTH_BYTES = 4
MAX_FRAME_BYTES = 1 << 30
MAX_BUFFERED_BYTES = 64 * 1024 * 1024
"""Bytes that the other side may leave unread. Beyond this limit the connection is closed, and the process looks for missed
messages when it reconnects."""

HIGH_WATER_BYTES, LOW_WATER_BYTES = 1024 * 1024, 256 * 1024
"""Unread bytes at which the other side counts as behind, and as caught up."""


class CarriedRun(Struct, frozen=True, array_like=True, gc=False):
    """A `TransientRun` without what takes it apart."""

    stream: str
    frame: bytes
    count: int
    timestamp: float
    ordered: bool


_ENVELOPE = msgspec.msgpack.Decoder(tuple[int, int, str, Raw])
_encode = msgspec.msgpack.Encoder(enc_hook=list).encode  # any collection is sent as a list


def frame(kind: int, number: int, name: str, body: object) -> bytes:
    encoded = _encode((kind, number, name, body))
    return len(encoded).to_bytes(LENGTH_BYTES, "little") + encoded


class Note:
    """A call without an answer, for several processes."""

    def __init__(self, method: str, *arguments: object) -> None:
        self.method = method
        self.arguments = arguments

    @cached_property
    def encoded(self) -> bytes:
        return frame(NOTE, 0, self.method, self.arguments)


# --- runs ------------------------------------------------------------------------------------------------------------


def carried(run: TransientRun) -> CarriedRun:
    return CarriedRun(run.stream, run.frame, run.count, run.timestamp, run.ordered)


def run_of(run: CarriedRun) -> TransientRun:
    return TransientRun(run.stream, run.frame, run.count, run.timestamp, take_apart, run.ordered)


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
    """The kind of a failure, and its text."""
    if isinstance(error, errors.PartitionChanged):
        return "partition", (error.stream, error.named, error.kept)
    for kind, known in _KINDS.items():
        if isinstance(error, known):
            return kind, str(error)
    logger.error("a call of a worker failed in the store", exc_info=error)
    return "unavailable", "the store failed at this"


def error_of(kind: str, detail: Raw) -> errors.RopewalkError:
    if kind == "partition":
        return errors.PartitionChanged(*msgspec.msgpack.decode(detail, type=tuple[str, str, str]))
    return _KINDS[kind](msgspec.msgpack.decode(detail, type=str))


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
        transport.set_write_buffer_limits(HIGH_WATER_BYTES, LOW_WATER_BYTES)

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
                logger.error("the bus received an invalid frame")
                self.close()
                return
            if end > size:
                break
            if length:
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
        """Write it now: the event loop joins the writes of one tick into one system call."""
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
