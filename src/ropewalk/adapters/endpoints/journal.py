"""The journal endpoint: its spans, ranges of one shard as Arrow IPC streams, and how far the archive has come.

Invariant: a response is bounded, and is read from the journal no faster than its reader takes it.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

import msgspec
from aiohttp import web

from ropewalk.adapters.endpoints.http_guard import KeyGuard, body_of, decoded, guarded, json_answer, number
from ropewalk.model.errors import BadRequest, RopewalkError
from ropewalk.model.journal import ShardSpan, holes_of, oldest_kept, shards_of
from ropewalk.ports import JournalReader

ARROW_STREAM = "application/vnd.apache.arrow.stream"
DEFAULT_BYTES = 8 * 1024 * 1024
MAX_BYTES = 64 * 1024 * 1024
READERS = 16
"""Ranges that are read at once; the others wait."""

_MAX_ARCHIVED = 65536
_MAX_POSITION = 2**63 - 1


class _Archived(msgspec.Struct, frozen=True):
    positions: dict[int, int]


class JournalEndpoint:
    def __init__(self, journal: JournalReader, guard: KeyGuard) -> None:
        self._journal = journal
        self._guard = guard
        self._readers = asyncio.Semaphore(READERS)

    def routes(self, path: str) -> list[web.RouteDef]:
        return [
            web.get(path, guarded(self._guard, self._spans)),
            web.get(f"{path}/{{shard:[0-9]{{1,9}}}}", guarded(self._guard, self._range)),
            web.post(f"{path}/archived", guarded(self._guard, self._archived)),
        ]

    async def _spans(self, request: web.Request) -> web.Response:
        spans = self._journal.spans()
        archived = {str(shard): end for shard, end in sorted(self._journal.archived_ends().items())}
        return json_answer(200, {"shards": shards_of(spans), "spans": spans, "holes": holes_of(spans), "archived": archived})

    async def _range(self, request: web.Request) -> web.StreamResponse:
        shard = int(request.match_info["shard"])
        spans = [span for span in self._journal.spans() if span.shard == shard]
        if (oldest := oldest_kept(spans)) is None:
            return json_answer(404, {"error": f"there is no shard {shard}", "shards": shards_of(self._journal.spans())})
        first = number(request, "from", oldest.first, 0, _MAX_POSITION)
        end = number(request, "to", _end_after(spans, first), 0, _MAX_POSITION)
        max_bytes = number(request, "max_bytes", DEFAULT_BYTES, 1, MAX_BYTES)
        async with self._readers, aclosing(self._read(shard, first, end, max_bytes)) as chunks:
            try:
                beginning = await anext(chunks, b"")
            except BadRequest as error:
                return json_answer(416, {"error": str(error), "spans": spans})
            if request.method == "HEAD":
                # What is written to a stream is sent whatever the method was, and would be taken for the next answer.
                return web.Response(headers={"Content-Type": ARROW_STREAM})
            return await _stream(request, beginning, chunks)

    async def _read(self, shard: int, first: int, end: int, max_bytes: int) -> AsyncGenerator[bytes, None]:
        """The port promises no `aclose`, and what is not read to its end has to be let go."""
        async for chunk in self._journal.read(shard, first, end, max_bytes):
            yield chunk

    async def _archived(self, request: web.Request) -> web.Response:
        order = decoded(await body_of(request, _MAX_ARCHIVED), _Archived, "the list of positions")
        known = {span.shard: span.end for span in self._journal.spans()}
        for shard, position in order.positions.items():
            if not 0 <= position <= known.get(shard, -1):
                raise BadRequest(f"shard {shard} has no position {position}")
        self._journal.archived(order.positions)
        return json_answer(200, {})


async def _stream(request: web.Request, beginning: bytes, chunks: AsyncIterator[bytes]) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": ARROW_STREAM})
    await response.prepare(request)
    try:
        await response.write(beginning)
        async for chunk in chunks:
            await response.write(chunk)
    except RopewalkError:
        # The answer has begun, so that only its end can say it: cut off, it cannot be taken for a whole one.
        if request.transport is not None:
            request.transport.close()
        return response
    except ConnectionResetError:
        return response
    await response.write_eof()
    return response


def _end_after(spans: list[ShardSpan], first: int) -> int:
    """How far one can read on from here."""
    return next((span.end for span in spans if span.first <= first <= span.end), spans[-1].end)
