"""What clients of Broky push. Runs of ephemeral streams stay whole and are collected while a connection is read; the others
are registered message by message.

A run without listeners and without a ref is only counted, by its key and count. A malformed one may go unnoticed there.
"""

import logging
from collections.abc import Awaitable, Coroutine, Sequence
from functools import lru_cache
from struct import Struct, pack
from typing import Any

from ropewalk.core.stats import Stats
from ropewalk.model.errors import ClientError, MalformedPublication, PartitionChanged, RopewalkError
from ropewalk.model.messages import Publication, Receipt, TransientRun
from ropewalk.ports import Clock, RunPublisher
from ropewalk.protocol.broky import frames
from ropewalk.protocol.broky.codec import MICROSECONDS
from ropewalk.protocol.broky.forwarding import KEY_AT, MIN_RUN_BYTES, NO_PARTITION, PREFIX, forwarded, peek, rebuilt, take_apart
from ropewalk.protocol.broky.frames import Reason
from ropewalk.protocol.broky.runs import run_publications
from ropewalk.protocol.broky.tables import encode
from ropewalk.protocol.publications import PublicationLimits
from ropewalk.protocol.stream_keys import decode_key

logger = logging.getLogger("ropewalk.broky")

Push = tuple[frames.Run, list[Publication]]

_length = Struct("<I").unpack_from


class Pushes:
    """What all connections do with runs. `instant`: the publisher never suspends."""

    def __init__(self, publisher: RunPublisher, limits: PublicationLimits, stats: Stats, clock: Clock, instant: bool) -> None:
        self.publisher = publisher
        self.limits = limits
        self.stats = stats
        self.clock = clock
        self.instant = instant
        # Of names and payloads up to here it is certain that their text, which is longer, is within the limits.
        self.short_name = (limits.max_stream_name - 8) * 3 // 4
        self.short_payload = (limits.max_publish_size - 16) * 3 // 4

    def build_push(self, run: frames.Run, may_push: bool) -> list[Publication] | bytes:
        """The publications of a run, or its refusal."""
        if not may_push:
            return self.refused(run.ref, Reason.FORBIDDEN, "pushing needs a publishing key as the token")
        try:
            return run_publications(run, self.limits)
        except MalformedPublication as mistake:
            return self.refused(run.ref, Reason.MALFORMED, mistake.reason, mistake.index)

    async def register(self, pushes: Sequence[Push]) -> bytes:
        """The answers to them. Never raises; does not suspend where the publisher is `instant`."""
        try:
            receipts = await self.publisher.publish([each for _, publications in pushes for each in publications])
        except ClientError as refusal:
            if len(pushes) > 1:  # nothing of them was registered, and it may be the fault of one
                return b"".join([await self.register([push]) for push in pushes])
            changed = isinstance(refusal, PartitionChanged)
            return self.refused(pushes[0][0].ref, Reason.PARTITION_CHANGED if changed else Reason.FORBIDDEN, str(refusal))
        except RopewalkError as failure:
            return self._failed([run.ref for run, _ in pushes], str(failure))
        except Exception:
            logger.exception("a push failed")
            return self._failed([run.ref for run, _ in pushes], "the server failed")
        return _pushed(pushes, receipts)

    def pass_on(self, runs: Sequence[TransientRun], refs: Sequence[int]) -> bytes | Coroutine[Any, Any, bytes]:
        """The answers to runs of ephemeral streams, or what gives them later. Neither raises. `refs`: of those that want one,
        heard or not."""
        try:
            waits = self.publisher.publish_runs(runs, confirm=bool(refs)) if runs else None
        except Exception as failure:
            return self._not_passed_on(refs, failure)
        if waits is not None:
            return self._passed_on(waits, refs)
        return pushed_nowhere(refs) if refs else b""

    async def _passed_on(self, waits: Awaitable[None], refs: Sequence[int]) -> bytes:
        try:
            await waits
        except Exception as failure:
            return self._not_passed_on(refs, failure)
        return pushed_nowhere(refs) if refs else b""

    def _not_passed_on(self, refs: Sequence[int], failure: Exception) -> bytes:
        if isinstance(failure, RopewalkError):
            return self._failed(refs, str(failure))
        logger.error("a push failed", exc_info=failure)
        return self._failed(refs, "the server failed")

    def _failed(self, refs: Sequence[int], text: str) -> bytes:
        return b"".join(self.refused(ref, Reason.UNAVAILABLE, text) for ref in refs)

    def refused(self, ref: int, reason: Reason, text: str, index: int = 0) -> bytes:
        """b"" where no answer is wanted: it is counted only."""
        if reason is not Reason.UNAVAILABLE:
            self.stats.publications_refused += 1
        return encode(frames.Refused(ref, index, reason, text)) if ref else b""


class CollectedRuns:
    """The runs of ephemeral streams that one connection has brought and that were not handed over yet, with the refs of those
    that want an answer."""

    __slots__ = ("_pushes", "_refs", "_refusals", "_runs")

    def __init__(self, pushes: Pushes) -> None:
        self._pushes = pushes
        self._runs: list[TransientRun] = []
        self._refs: list[int] = []
        self._refusals: list[bytes] = []

    def __bool__(self) -> bool:
        return bool(self._runs or self._refs or self._refusals)

    def take(self, data: bytes, start: int, limit: int, enough: int) -> int:
        """Collect the complete runs of `data` from `start` on, up to the first frame that is not on the fast path.

        Args:
            limit: largest frame.
            enough: bytes after which to stop.

        Returns:
            The position of the first frame that was not collected.
        """
        pushes = self._pushes
        longest, most = pushes.short_name, pushes.limits.max_batch
        stop, unheard, now = len(data), 0, pushes.clock()
        last = min(stop - MIN_RUN_BYTES, start + enough - 1)
        name, stream, to_nobody = b"", "", False  # of the run before, which mostly has the same key
        while start <= last:
            size, ref, count, key, _ = peek(data, start)
            end = start + size + 4
            if end > stop or size > limit or end - start < MIN_RUN_BYTES or not data.startswith(PREFIX, start + 4):
                break
            name_at = start + KEY_AT + key + 4
            if key & 3 or key < MIN_RUN_BYTES - KEY_AT or name_at > end or count > most:
                break
            name_end = name_at + _length(data, name_at - 4)[0]
            if name_end > end or not 0 < name_end - name_at <= longest:
                break
            if data[name_at:name_end] != name:
                name = data[name_at:name_end]
                stream = decode_key(name)
                if not pushes.publisher.is_ephemeral(stream):
                    break
                to_nobody = stream not in pushes.publisher.listened_streams
            if to_nobody and not ref:
                unheard += count
            elif not self._collect(stream, data, start, end, now):
                break
            start = end
        if unheard:
            pushes.stats.publications += unheard
            pushes.stats.publications_unheard += unheard
        return start

    def _collect(self, stream: str, data: bytes, start: int, end: int, now: float) -> bool:
        pushes = self._pushes
        _, ref, count, _, partition = peek(data, start)
        if partition != NO_PARTITION and pushes.publisher.derives_partitions:
            return False
        frame = forwarded(data, start, end, int(now * MICROSECONDS), pushes.short_payload, pushes.short_name)
        if frame is None:
            return False
        self._put(TransientRun(stream, frame, count, now, take_apart, partition != NO_PARTITION), ref)
        return True

    def _put(self, run: TransientRun, ref: int) -> None:
        pushes = self._pushes
        if run.stream in pushes.publisher.listened_streams:
            self._runs.append(run)
        else:
            pushes.stats.publications += run.count
            pushes.stats.publications_unheard += run.count
        if ref:
            self._refs.append(ref)

    def add(self, run: frames.Run) -> bool:
        """Collect a run of any layout, or its refusal. False if its stream is not ephemeral."""
        pushes = self._pushes
        publisher, stream = pushes.publisher, decode_key(run.key)
        if not publisher.is_ephemeral(stream):
            return False
        if isinstance(refusal := pushes.build_push(run, may_push=True), bytes):
            self._refusals.append(refusal)
            return True
        try:
            publisher.check_partition(stream, decode_key(run.key_partition))
        except PartitionChanged as changed:
            self._refusals.append(pushes.refused(run.ref, Reason.PARTITION_CHANGED, str(changed)))
            return True
        now = pushes.clock()
        frame = rebuilt(run, int(now * MICROSECONDS))
        self._put(TransientRun(stream, frame, run.count, now, take_apart, bool(run.key_partition)), run.ref)
        return True

    def hand_over(self) -> bytes | Coroutine[Any, Any, bytes]:
        """The answers, or what gives them later. Neither raises."""
        runs, self._runs = self._runs, []
        refs, self._refs = self._refs, []
        refusals, self._refusals = self._refusals, []
        answer = self._pushes.pass_on(runs, refs)
        if not refusals:
            return answer
        return b"".join((answer, *refusals)) if isinstance(answer, bytes) else _with_refusals(answer, refusals)


async def _with_refusals(answer: Coroutine[Any, Any, bytes], refusals: list[bytes]) -> bytes:
    return b"".join((await answer, *refusals))


def _pushed(pushes: Sequence[Push], receipts: Sequence[Receipt]) -> bytes:
    refs: list[int] = []
    offsets: list[int] = []
    epochs: list[bytes] = []
    first = 0
    for run, publications in pushes:
        if run.ref:
            epoch = receipts[first].epoch.encode()
            refs.append(run.ref)
            offsets.append(receipts[first].offset)
            epochs.append(len(epoch).to_bytes() + epoch)
        first += len(publications)
    return encode(frames.Pushed(tuple(refs), tuple(offsets), b"".join(epochs))) if refs else b""


def pushed_nowhere(refs: Sequence[int]) -> bytes:
    """The answer to pushes that have no position."""
    count = len(refs)
    if count > MAX_PREPARED:
        return encode(frames.Pushed(tuple(refs), (0,) * count, bytes(count)))
    before, after = _answer_around(count)
    return b"%b%b%b" % (before, pack(f"<{count}I", *refs), after)


MAX_PREPARED = 64
"""Most refs of an answer whose surrounding bytes are cached."""


@lru_cache(maxsize=MAX_PREPARED)
def _answer_around(count: int) -> tuple[bytes, bytes]:
    mark = 0xFFFFFFFF
    before, _, after = encode(frames.Pushed((mark,) * count, (0,) * count, bytes(count))).partition(
        pack(f"<{count}I", *(mark,) * count)
    )
    return before, after
