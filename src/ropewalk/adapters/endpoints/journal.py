"""The journal endpoint: its spans, ranges of one shard as Arrow IPC streams, and how far the archive has come.

Invariant: a response is bounded, and is read from the journal no faster than its reader takes it.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, suppress

import msgspec

from ropewalk.adapters.endpoints.http_guard import KeyGuard, body_of, decoded, guarded, number, whole
from ropewalk.adapters.endpoints.http_requests import HttpRequest
from ropewalk.adapters.endpoints.http_responses import HttpResponse, ResponseStream, encode_fields, json_answer
from ropewalk.adapters.endpoints.routes import HttpAnswer, HttpRoute
from ropewalk.model.errors import BadRequest, RopewalkError
from ropewalk.model.journal import ShardSpan, count_shards, find_holes, first_kept_span
from ropewalk.ports import JournalReader

ARROW_STREAM = "application/vnd.apache.arrow.stream"
DEFAULT_BYTES = 8 * 1024 * 1024
MAX_BYTES = 64 * 1024 * 1024
READERS = 16
"""Ranges that are read at once; the others wait."""

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
            return json_answer(404, {"error": f"there is no shard {shard}", "shards": count_shards(self._journal.spans())})
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
        order = decoded(await body_of(request, _MAX_ARCHIVED), _Archived, "the list of positions")
        known = {span.shard: span.end for span in self._journal.spans()}
        for shard, position in order.positions.items():
            if not 0 <= position <= known.get(shard, -1):
                raise BadRequest(f"shard {shard} has no position {position}")
        self._journal.mark_archived(order.positions)
        return json_answer(200, {})


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
