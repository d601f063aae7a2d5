"""The publish endpoint: registers the publications of an HTTP POST. Mounted once for every path with its own key.

A request is answered once all of it is registered. On an error, nothing is registered, and the answer has the reason.
"""

import logging
from collections.abc import Coroutine, Sequence
from typing import Any

from msgspec.json import encode

from ropewalk.adapters.endpoints.http_guard import BODY_SECONDS, KEYED, KeyGuard, answer_to, gather, guarded
from ropewalk.adapters.endpoints.http_requests import HttpRequest
from ropewalk.adapters.endpoints.http_responses import JSON, HttpResponse, json_answer, refusal
from ropewalk.adapters.endpoints.routes import ANY, HttpAnswer, HttpRoute
from ropewalk.core.stats import Stats
from ropewalk.model.errors import (
    BadBody,
    BadRequest,
    ClientError,
    LateBody,
    MalformedPublication,
    PartitionChanged,
    RopewalkError,
)
from ropewalk.model.messages import Publication, Receipt, RemoteDisconnect
from ropewalk.model.refusals import Refusal
from ropewalk.ports import Publisher
from ropewalk.protocol.publications import LARGE_BYTES, PublicationLimits, decode, decode_gently

logger = logging.getLogger("ropewalk.http")

UNREADABLE = "the body cannot be read"


class PublishEndpoint:
    """Implements `QuickHandler` for small requests that are not refused. `handle` answers all others.

    Args:
        instant: the publisher never suspends when it publishes.
    """

    def __init__(
        self,
        publisher: Publisher,
        guard: KeyGuard,
        limits: PublicationLimits,
        stats: Stats,
        timeout: float = BODY_SECONDS,
        instant: bool = False,
    ) -> None:
        self._publisher = publisher
        self._guard = guard
        self._limits = limits
        self._stats = stats
        self._timeout = timeout
        self._guarded = guarded(guard, self._answer)
        self._max_quick_bytes = min(limits.max_publish_size, LARGE_BYTES)  # larger bodies are decoded in pieces
        self.instant = instant

    def routes(self, path: str) -> list[HttpRoute]:
        return [HttpRoute(ANY, path, self.handle, self)]

    # --- any request --------------------------------------------------------------------------------------------------

    async def handle(self, request: HttpRequest) -> HttpAnswer:
        if request.method != "POST":
            return refusal(405, "publish with POST", {"Allow": "POST"})
        return await self._guarded(request)

    async def _answer(self, request: HttpRequest) -> HttpResponse:
        """Raises what `guarded` answers, but for a body that cannot be read: its refusal has an `index` here, like that of a
        malformed publication."""
        try:
            return await self._take(request)
        except ClientError as error:
            self._stats.publications_refused += 1
            match error:
                case LateBody():
                    return self._unreadable(request, 408, str(error), Refusal.BODY_TIMEOUT)
                case BadBody():
                    return self._unreadable(request, 422, UNREADABLE, Refusal.BAD_BODY)
            raise
        except ConnectionError:
            self._stats.publications_refused += 1
            return self._unreadable(request, 422, UNREADABLE, Refusal.BAD_BODY)

    def _unreadable(self, request: HttpRequest, status: int, reason: str, why: Refusal) -> HttpResponse:
        """The connection ends with it: where the next request begins is not known."""
        self._guard.refused(why)
        request.body.fail(reason)
        refused = json_answer(status, {"error": reason, "index": 0})
        refused.close = True
        return refused

    async def _take(self, request: HttpRequest) -> HttpResponse:
        key = _idempotency_key(request)
        limit = self._limits.max_publish_size
        body = await gather(request.body.chunks(), request.headers, limit, KEYED, self._timeout)
        match await decode_gently(body, self._limits, key):
            case RemoteDisconnect() as order:
                return json_answer(201, {"disconnected": await self._publisher.disconnect(order)})
            case publications:
                return await self._register(publications)

    async def _register(self, publications: Sequence[Publication]) -> HttpResponse:
        try:
            receipts = await self._publisher.publish(publications)
        except RopewalkError as error:
            return self._refused(error, publications)
        return HttpResponse(201, shown(receipts), JSON)

    def _refused(self, error: RopewalkError, publications: Sequence[Publication]) -> HttpResponse:
        """What the publisher said no to."""
        if isinstance(error, ClientError):
            self._stats.publications_refused += 1
        if isinstance(error, PartitionChanged):
            return json_answer(409, {"error": str(error), "index": _batch_index(error, publications)})
        return answer_to(error, self._guard)

    # --- quick requests -----------------------------------------------------------------------------------------------

    def takes(self, request: HttpRequest) -> bool:
        headers = request.headers
        return (
            request.method == "POST"
            and request.length is not None
            and request.length <= self._max_quick_bytes
            and not request.continue_expected
            and "content-encoding" not in headers
            and self._guard.knows(headers.get("authorization"))
        )

    def answer(self, request: HttpRequest, body: bytes) -> Coroutine[Any, Any, HttpResponse] | None:
        try:
            found = decode(body, self._limits, _idempotency_key(request))
        except (MalformedPublication, BadRequest):
            return None
        return None if isinstance(found, RemoteDisconnect) else self._publish(found)

    async def _publish(self, publications: Sequence[Publication]) -> HttpResponse:
        """Never raises; does not suspend where the publisher is `instant`."""
        try:
            return await self._register(publications)
        except Exception:
            logger.exception("publish request failed")
            return refusal(500, "the server failed")

    def cut_off(self) -> None:
        """Count a connection that was lost in the middle of a body."""
        self._stats.publications_refused += 1
        self._guard.refused(Refusal.BAD_BODY)


def _idempotency_key(request: HttpRequest) -> str:
    """Empty without one. Raises BadRequest for several."""
    given = request.headers.getall("idempotency-key")
    if len(given) > 1:
        raise BadRequest("the header Idempotency-Key may be given once")
    return given[0] if given else ""


def _batch_index(error: PartitionChanged, publications: Sequence[Publication]) -> int:
    """Which of them was refused: the key of a stream does not change within a batch, so the first that names the other one."""
    for index, publication in enumerate(publications):
        if not publication.transient and (publication.stream, publication.partition_key) == (error.stream, error.named):
            return index
    return 0


def shown(receipts: Sequence[Receipt]) -> bytes:
    """The body of a 201. A transient publication has no position to show."""
    for receipt in receipts:
        if not receipt.offset:
            return encode({"publications": [each if each.offset else {"stream": each.stream} for each in receipts]})
    return b'{"publications":%b}' % encode(receipts)
