"""Delivered messages: decoded into the events that a stream yields."""

import json
import logging
from collections.abc import Iterable
from itertools import repeat
from typing import Any

import msgspec
from msgspec import Struct

from ropewalk.client.events import UNREADABLE, BrokyMessage, Event, Gap, Message
from ropewalk.model.messages import Position
from ropewalk.model.nesting import TOO_DEEP, is_too_deep
from ropewalk.protocol.broky.frames import Format, Run
from ropewalk.protocol.broky.ksuid import KSUID_BYTES
from ropewalk.protocol.broky.runs import split_payloads
from ropewalk.protocol.server_messages import Data

logger = logging.getLogger("ropewalk.client")

MAX_INTEGER_DIGITS = 4300
"""Python refuses to read longer ones."""


def decode_payload(payload: bytes) -> Any:
    """Raises ValueError. A number that is too large is infinite, as in JavaScript and in Python's own json."""
    if is_too_deep(payload):
        raise ValueError(TOO_DEEP)
    try:
        return msgspec.json.decode(payload)
    except msgspec.ValidationError:  # valid JSON with a number out of range
        return json.loads(payload, parse_int=_integer)


def _integer(text: str) -> int | float:
    return int(text) if len(text) <= MAX_INTEGER_DIGITS else float(text)


class DeliveredMessages(Struct, frozen=True, gc=False):
    """`count` consecutive messages of one stream. `offset` is the first one's, 0 if they have no positions."""

    identifier: str
    stream: str
    epoch: str
    offset: int
    count: int
    source: Data | Run

    def events(self, replayed: bool) -> list[Event]:
        """One event per message. A message that cannot be decoded becomes a gap of one, or nothing if it has no position."""
        if isinstance(self.source, Run):
            return decode_run(self.source, self.stream, self.epoch, replayed)
        return _decode_data(self.source, replayed)


class SubscriptionSuperseded(Struct, frozen=True):
    """The server answered a subscription that the program has cancelled meanwhile. Now this one can be requested."""

    identifier: str


def decode_run(run: Run, stream: str, epoch: str, replayed: bool) -> list[Event]:
    offset, at, part = run.offset, run.ts_broker, run.key_partition
    if run.format is Format.JSON:
        return _decode_json_run(run, stream, epoch, replayed)
    if not run.sizes and not run.uid and not run.ts_producer:
        return [BrokyMessage(run.payload, stream, epoch, offset, "", replayed, run.payload, Format.BYTES, at, 0, b"", part)]
    return [
        BrokyMessage(payload, stream, epoch, place, "", replayed, payload, Format.BYTES, at, time, uid, part)
        for payload, place, time, uid in zip(split_payloads(run), _offsets(run), *_producer_fields(run), strict=False)
    ]


def _decode_data(data: Data, replayed: bool) -> list[Event]:
    try:
        body = decode_payload(data.payload)
    except ValueError as error:
        return _report_unreadable(data.stream, data.epoch, data.offset, error)
    return [Message(body, data.stream, data.epoch, data.offset, data.type, replayed)]


def _decode_json_run(run: Run, stream: str, epoch: str, replayed: bool) -> list[Event]:
    events: list[Event] = []
    at, part = run.ts_broker, run.key_partition
    for payload, offset, time, uid in zip(split_payloads(run), _offsets(run), *_producer_fields(run), strict=False):
        try:
            data = decode_payload(payload)
        except ValueError as error:
            events += _report_unreadable(stream, epoch, offset, error)
            continue
        events.append(BrokyMessage(data, stream, epoch, offset, "", replayed, payload, Format.JSON, at, time, uid, part))
    return events


def _report_unreadable(stream: str, epoch: str, offset: int, error: ValueError) -> list[Event]:
    logger.warning("undecodable message", extra={"stream": stream, "offset": offset, "reason": str(error)})
    return [Gap(stream, UNREADABLE, Position(epoch, offset - 1), epoch, offset + 1, offset)] if offset else []


def _offsets(run: Run) -> Iterable[int]:
    return range(run.offset, run.offset + run.count) if run.offset else repeat(0)


def _producer_fields(run: Run) -> tuple[Iterable[int], Iterable[bytes]]:
    """Times and uids of the messages."""
    uids = [run.uid[at : at + KSUID_BYTES] for at in range(0, len(run.uid), KSUID_BYTES)]
    return run.ts_producer or repeat(0), uids or repeat(b"")
