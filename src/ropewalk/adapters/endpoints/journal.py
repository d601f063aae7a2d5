"""The endpoints of the journal: its spans, ranges of one shard as Arrow IPC streams, the archive's progress, consumers, and
transactions.

Invariant: a response is bounded, and is read from the journal no faster than its reader accepts it.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, suppress

import msgspec

from ropewalk.adapters.endpoints.http_guard import KeyGuard, decoded, guarded, number, read_body, whole
from ropewalk.adapters.endpoints.http_requests import HttpRequest
from ropewalk.adapters.endpoints.http_responses import HttpResponse, ResponseStream, encode_fields, json_answer, refusal
from ropewalk.adapters.endpoints.routes import HttpAnswer, HttpRoute
from ropewalk.core.consumers import count_lag, is_valid_mark
from ropewalk.core.transactions import MAX_BATCH, check_name
from ropewalk.model.errors import BadRequest, RopewalkError
from ropewalk.model.journal import Consumer, Marks, ShardMark, ShardSpan, count_shards, find_holes, first_kept_span
from ropewalk.ports import ConsumerStore, JournalReader, Transactor

logger = logging.getLogger("ropewalk.journal")

ARROW_STREAM = "application/vnd.apache.arrow.stream"
DEFAULT_BYTES = 8 * 1024 * 1024
MAX_BYTES = 64 * 1024 * 1024
READERS = 16
"""Ranges that are read at once; the others wait."""

MAX_LOGGED_SHARDS = 4

_MAX_ARCHIVED = 65536
_MAX_POSITION = 2**63 - 1
_MAX_SHARD = 10**9 - 1
_ARROW_FIELDS = {"Content-Type": ARROW_STREAM}


class _Archived(msgspec.Struct, frozen=True):
    positions: dict[int, int]


class JournalEndpoint:
    def __init__(self, journal: JournalReader, guard: KeyGuard) -> None:
        self._journal = journal
        self._guard = guard
        self._readers = asyncio.Semaphore(READERS)

    def routes(self, path: str) -> list[HttpRoute]:
        return [
            HttpRoute("GET", path, guarded(self._guard, self._spans)),
            HttpRoute("GET", f"{path}/{{shard}}", guarded(self._guard, self._range)),
            HttpRoute("POST", f"{path}/archived", guarded(self._guard, self._archived)),
        ]

    async def _spans(self, request: HttpRequest) -> HttpResponse:
        spans = self._journal.spans()
        archived = {str(shard): end for shard, end in sorted(self._journal.archived_ends().items())}
        return json_answer(
            200, {"shards": count_shards(spans), "spans": spans, "holes": find_holes(spans), "archived": archived}
        )

    async def _range(self, request: HttpRequest) -> HttpAnswer:
        shard = whole(request.params["shard"], "shard", 0, _MAX_SHARD)
        spans = [span for span in self._journal.spans() if span.shard == shard]
        if (oldest := first_kept_span(spans)) is None:
            return json_answer(404, {"error": f"unknown shard: {shard}", "shards": count_shards(self._journal.spans())})
        first = number(request, "from", oldest.first, 0, _MAX_POSITION)
        end = number(request, "to", _end_after(spans, first), 0, _MAX_POSITION)
        max_bytes = number(request, "max_bytes", DEFAULT_BYTES, 1, MAX_BYTES)
        async with self._readers, aclosing(self._read(shard, first, end, max_bytes)) as chunks:
            try:
                beginning = await anext(chunks, b"")
            except BadRequest as error:
                return json_answer(416, {"error": str(error), "spans": spans})
            if request.method == "HEAD":
                return HttpResponse(fields=encode_fields(_ARROW_FIELDS))
            return await _stream(request, beginning, chunks)

    async def _read(self, shard: int, first: int, end: int, max_bytes: int) -> AsyncGenerator[bytes, None]:
        """The port guarantees no `aclose`, and an iterator that is not exhausted must be closed."""
        async for chunk in self._journal.read(shard, first, end, max_bytes):
            yield chunk

    async def _archived(self, request: HttpRequest) -> HttpResponse:
        order = decoded(await read_body(request, _MAX_ARCHIVED), _Archived, "the list of positions")
        known = {span.shard: span.end for span in self._journal.spans()}
        for shard, position in order.positions.items():
            if not 0 <= position <= known.get(shard, -1):
                raise BadRequest(f"shard {shard} has no position {position}")
        before = self._journal.archived_ends()
        lower = {shard: end for shard, end in sorted(order.positions.items()) if end < before.get(shard, 0)}
        if lower:
            _log_lower(lower, before)
        self._journal.mark_archived(order.positions)
        return json_answer(200, {})


def _log_lower(lower: Mapping[int, int], before: Mapping[int, int]) -> None:
    shown = ", ".join(f"{shard} from {before[shard]} to {end}" for shard, end in list(lower.items())[:MAX_LOGGED_SHARDS])
    logger.warning(
        "the archive reports a lower end than before; the journal keeps the rows that it still has",
        extra={"shards": shown, "more_shards": max(0, len(lower) - MAX_LOGGED_SHARDS)},
    )


async def _stream(request: HttpRequest, beginning: bytes, chunks: AsyncIterator[bytes]) -> ResponseStream:
    """Without an end where the journal cannot be read on: a client cannot take that for a whole response."""
    stream = ResponseStream(request, 200, _ARROW_FIELDS)
    with suppress(RopewalkError, ConnectionResetError):
        await stream.write(beginning)
        async for chunk in chunks:
            await stream.write(chunk)
        await stream.end()
    return stream


def _end_after(spans: list[ShardSpan], first: int) -> int:
    """How far one can read on from here."""
    return next((span.end for span in spans if span.first <= first <= span.end), spans[-1].end)


MAX_OFFSET = 64 * 1024
_LONGEST_EPOCH = 64


class ConsumersEndpoint:
    """Named readers of the journal. The server keeps their marks, which must be within the rows that the journal has served."""

    def __init__(self, store: ConsumerStore, journal: JournalReader, guard: KeyGuard) -> None:
        self._store = store
        self._journal = journal
        self._guard = guard

    def routes(self, path: str) -> list[HttpRoute]:
        one = f"{path}/consumers/{{name}}"
        return [
            HttpRoute("GET", f"{path}/consumers", guarded(self._guard, self._list)),
            HttpRoute("POST", one, guarded(self._guard, self._pin)),
            HttpRoute("PUT", one, guarded(self._guard, self._move)),
            HttpRoute("DELETE", one, guarded(self._guard, self._forget)),
        ]

    async def _list(self, request: HttpRequest) -> HttpResponse:
        spans = self._journal.spans()
        return json_answer(200, {"consumers": [_shown(consumer, spans) for consumer in self._store.consumers()]})

    async def _pin(self, request: HttpRequest) -> HttpResponse:
        consumer = await self._store.pin(_name(request), await self._marks(request))
        return json_answer(200, _offset(consumer))

    async def _move(self, request: HttpRequest) -> HttpResponse:
        consumer = await self._store.move(_name(request), await self._marks(request))
        return json_answer(200, _offset(consumer))

    async def _forget(self, request: HttpRequest) -> HttpResponse:
        name = _name(request)
        if not await self._store.remove(name):
            return refusal(404, f"unknown consumer: {name}")
        return json_answer(200, {})

    async def _marks(self, request: HttpRequest) -> Marks:
        marks = decoded(await read_body(request, MAX_OFFSET), dict[int, ShardMark], "the offset")
        if not marks:
            raise BadRequest("an offset has a mark for one shard at the least")
        _check(marks, self._journal.spans())
        return marks


def _check(marks: Marks, spans: list[ShardSpan]) -> None:
    for shard, mark in marks.items():
        own = [span for span in spans if span.shard == shard]
        if not own or not 0 <= mark.position <= own[-1].end:
            raise BadRequest(f"shard {shard} has no position {mark.position}")
        if len(mark.epoch) > _LONGEST_EPOCH:
            raise BadRequest(f"an epoch has {_LONGEST_EPOCH} characters at the most")
        if not is_valid_mark(own, mark):
            raise BadRequest(f"position {mark.position} of shard {shard} is not of the epoch {mark.epoch!r}")


def _name(request: HttpRequest) -> str:
    return check_name(request.params["name"], "consumer")


def _offset(consumer: Consumer) -> dict[str, object]:
    return {str(shard): mark for shard, mark in consumer.marks.items()}


def _shown(consumer: Consumer, spans: list[ShardSpan]) -> dict[str, object]:
    rows = count_lag(consumer.marks, spans)
    return {
        "name": consumer.name,
        "offset": _offset(consumer),
        "moved": consumer.moved,
        "lag": {str(shard): rows[shard] for shard in rows},
    }


PLACES = 8
"""Bodies that are taken at once; the others wait in their sockets."""

MAX_COMMIT = 4 * 1024 * 1024
_MAX_PART = 2**31 - 1
_MAX_NUMBER = 2**63 - 1
_MAX_ROWS = 2**32  # far above what a body can hold; so that no sequence passes 63 bits


class _Commit(msgspec.Struct, frozen=True):
    """`winners`: part → the attempt that counts. `pieces`: part → how many pieces it staged, optional per part."""

    winners: dict[int, int]
    pieces: dict[int, int] = {}


class TransactionsEndpoint:
    """For applications that publish in batches: stage and commit, or rows without a transaction.

    Names and numbers are checked here. The number of bodies in memory at once is limited.
    """

    def __init__(self, transactor: Transactor, guard: KeyGuard, max_body: int) -> None:
        self._transactor = transactor
        self._guard = guard
        self._max_body = max_body
        self._places = asyncio.Semaphore(PLACES)

    def routes(self, path: str) -> list[HttpRoute]:
        batch = f"{path}/transactions/{{app}}/{{batch}}"
        return [
            HttpRoute("GET", f"{path}/transactions/{{app}}", guarded(self._guard, self._last)),
            HttpRoute("POST", f"{batch}/stage", guarded(self._guard, self._stage)),
            HttpRoute("POST", f"{batch}/commit", guarded(self._guard, self._commit)),
            HttpRoute("POST", f"{path}/producers/{{producer}}", guarded(self._guard, self._produce)),
            HttpRoute("POST", f"{path}/publications", guarded(self._guard, self._publish)),
        ]

    async def _last(self, request: HttpRequest) -> HttpResponse:
        return json_answer(200, {"last": await self._transactor.last_batch(_app(request))})

    async def _stage(self, request: HttpRequest) -> HttpResponse:
        app, batch = _app(request), _batch(request)
        key = (
            number(request, "part", None, 0, _MAX_PART),
            number(request, "attempt", None, 0, _MAX_NUMBER),
            number(request, "seq", None, 0, _MAX_PART),
        )
        async with self._places:
            staged = await self._transactor.stage(app, batch, key, await read_body(request, self._max_body))
        return json_answer(200, msgspec.structs.asdict(staged))

    async def _commit(self, request: HttpRequest) -> HttpResponse:
        app, batch = _app(request), _batch(request)
        order = decoded(await read_body(request, MAX_COMMIT), _Commit, "the commit")
        committed = await self._transactor.commit(app, batch, order.winners, order.pieces)
        return json_answer(200, msgspec.structs.asdict(committed))

    async def _produce(self, request: HttpRequest) -> HttpResponse:
        producer = check_name(request.params["producer"], "producer")
        first = number(request, "sequence", None, 0, _MAX_NUMBER - _MAX_ROWS)
        async with self._places:
            produced = await self._transactor.produce(producer, first, await read_body(request, self._max_body))
        return json_answer(200, msgspec.structs.asdict(produced))

    async def _publish(self, request: HttpRequest) -> HttpResponse:
        async with self._places:
            produced = await self._transactor.publish(await read_body(request, self._max_body))
        return json_answer(200, msgspec.structs.asdict(produced))


def _app(request: HttpRequest) -> str:
    return check_name(request.params["app"], "app")


def _batch(request: HttpRequest) -> int:
    return whole(request.params["batch"], "batch", 0, MAX_BATCH)
