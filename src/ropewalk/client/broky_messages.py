"""The messages of a run, as programs get them."""

import logging
from collections.abc import Iterable
from itertools import repeat

from ropewalk.client.events import UNREADABLE, BrokyMessage, Event, Gap
from ropewalk.client.payloads import decode_payload
from ropewalk.model.messages import Position
from ropewalk.protocol.broky.frames import Format, Run
from ropewalk.protocol.broky.ksuid import KSUID_BYTES
from ropewalk.protocol.broky.runs import payloads_of

logger = logging.getLogger("ropewalk.client")

NOWHERE = Position("", 0)


def events_of(run: Run, stream: str, tip: Position = NOWHERE) -> list[Event]:
    """One for each message, and in the place of one that cannot be decoded a gap of one; nothing if it has no position. `tip`:
    up to where it is the past."""
    offset, at, part = run.offset, run.ts_broker, run.key_partition
    epoch = run.epoch.decode()
    replayed = 0 < offset <= tip.offset and epoch == tip.epoch
    if run.format is Format.JSON:
        return _decoded(run, stream, epoch, replayed)
    if not run.sizes and not run.uid and not run.ts_producer:
        return [BrokyMessage(run.payload, stream, epoch, offset, "", replayed, run.payload, Format.BYTES, at, 0, b"", part)]
    payloads = payloads_of(run)
    return [
        BrokyMessage(payload, stream, epoch, place, "", replayed, payload, Format.BYTES, at, time, uid, part)
        for payload, place, time, uid in zip(payloads, _offsets(run), *_of_producer(run), strict=False)
    ]


def _decoded(run: Run, stream: str, epoch: str, replayed: bool) -> list[Event]:
    events: list[Event] = []
    for payload, offset, time, uid in zip(payloads_of(run), _offsets(run), *_of_producer(run), strict=False):
        try:
            data = decode_payload(payload)
        except ValueError as error:
            logger.warning("a message cannot be read", extra={"stream": stream, "offset": offset, "reason": str(error)})
            if offset:
                events.append(Gap(stream, UNREADABLE, Position(epoch, offset - 1), epoch, offset + 1, offset))
            continue
        at, part = run.ts_broker, run.key_partition
        events.append(BrokyMessage(data, stream, epoch, offset, "", replayed, payload, Format.JSON, at, time, uid, part))
    return events


def _offsets(run: Run) -> Iterable[int]:
    return range(run.offset, run.offset + run.count) if run.offset else repeat(0)


def _of_producer(run: Run) -> tuple[Iterable[int], Iterable[bytes]]:
    """Its times and uids."""
    uids = run.uid
    cut = [uids[at : at + KSUID_BYTES] for at in range(0, len(uids), KSUID_BYTES)]
    return run.ts_producer or repeat(0), cut or repeat(b"")
