"""The publish endpoint: an HTTP POST becomes registered publications. Mounted once for every path with its own key.

A request is answered only when all of it is registered. If anything is wrong, the answer says what, and nothing was
registered.
"""

from collections.abc import Sequence

from aiohttp import web
from msgspec.json import encode

from ropewalk.adapters.endpoints.http_guard import (
    BODY_SECONDS,
    KEYED,
    KeyGuard,
    gather,
    guarded,
    json_answer,
    refusal,
    unreadable,
)
from ropewalk.core.stats import Stats
from ropewalk.model.errors import BadBody, ClientError, LateBody, PartitionChanged
from ropewalk.model.messages import Publication, Receipt, RemoteDisconnect
from ropewalk.model.refusals import Refusal
from ropewalk.ports import Publisher
from ropewalk.protocol.publications import PublicationLimits, decode_gently

UNREADABLE = "the body cannot be read"


class PublishEndpoint:
    def __init__(
        self, publisher: Publisher, guard: KeyGuard, limits: PublicationLimits, stats: Stats, timeout: float = BODY_SECONDS
    ) -> None:
        self._publisher = publisher
        self._guard = guard
        self._limits = limits
        self._stats = stats
        self._timeout = timeout
        self._guarded = guarded(guard, self._answer)

    def routes(self, path: str) -> list[web.RouteDef]:
        return [web.route("*", path, self.handle)]

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.method != "POST":
            return refusal(405, "publish with POST", {"Allow": "POST"})
        return await self._guarded(request)

    async def _answer(self, request: web.Request) -> web.Response:
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
        except (web.RequestPayloadError, ConnectionError):
            self._stats.publications_refused += 1
            return self._unreadable(request, 422, UNREADABLE, Refusal.BAD_BODY)

    def _unreadable(self, request: web.Request, status: int, reason: str, why: Refusal) -> web.Response:
        self._guard.refused(why)
        return unreadable(request, json_answer(status, {"error": reason, "index": 0}))

    async def _take(self, request: web.Request) -> web.Response:
        limit = self._limits.max_publish_size
        body = await gather(request.content.iter_any(), request.headers, limit, KEYED, self._timeout)
        match await decode_gently(body, self._limits, request.headers.get("Idempotency-Key", "")):
            case RemoteDisconnect() as order:
                return json_answer(201, {"disconnected": await self._publisher.disconnect(order)})
            case publications:
                return await self._register(publications)

    async def _register(self, publications: Sequence[Publication]) -> web.Response:
        try:
            receipts = await self._publisher.publish(publications)
        except PartitionChanged as error:
            self._stats.publications_refused += 1
            return json_answer(409, {"error": str(error), "index": _index_of(error, publications)})
        return web.Response(status=201, body=shown(receipts), content_type="application/json")


def _index_of(error: PartitionChanged, publications: Sequence[Publication]) -> int:
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
