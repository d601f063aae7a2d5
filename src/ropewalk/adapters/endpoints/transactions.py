"""The endpoint for applications that publish in batches: stage and commit, or rows without a transaction.

Invariant: names and numbers are checked here, and the number of bodies in memory at once is bounded.
"""

import asyncio

import msgspec

from ropewalk.adapters.endpoints.http_guard import KeyGuard, body_of, decoded, guarded, number, whole
from ropewalk.adapters.endpoints.http_requests import HttpRequest
from ropewalk.adapters.endpoints.http_responses import HttpResponse, json_answer
from ropewalk.adapters.endpoints.routes import HttpRoute
from ropewalk.core.transactions import MAX_BATCH, check_name
from ropewalk.ports import Transactor

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
            staged = await self._transactor.stage(app, batch, key, await body_of(request, self._max_body))
        return json_answer(200, msgspec.structs.asdict(staged))

    async def _commit(self, request: HttpRequest) -> HttpResponse:
        app, batch = _app(request), _batch(request)
        order = decoded(await body_of(request, MAX_COMMIT), _Commit, "the commit")
        committed = await self._transactor.commit(app, batch, order.winners, order.pieces)
        return json_answer(200, msgspec.structs.asdict(committed))

    async def _produce(self, request: HttpRequest) -> HttpResponse:
        producer = check_name(request.params["producer"], "producer")
        first = number(request, "sequence", None, 0, _MAX_NUMBER - _MAX_ROWS)
        async with self._places:
            produced = await self._transactor.produce(producer, first, await body_of(request, self._max_body))
        return json_answer(200, msgspec.structs.asdict(produced))

    async def _publish(self, request: HttpRequest) -> HttpResponse:
        async with self._places:
            produced = await self._transactor.publish(await body_of(request, self._max_body))
        return json_answer(200, msgspec.structs.asdict(produced))


def _app(request: HttpRequest) -> str:
    return check_name(request.params["app"], "app")


def _batch(request: HttpRequest) -> int:
    return whole(request.params["batch"], "batch", 0, MAX_BATCH)
