"""The publish endpoint: an HTTP POST becomes registered publications. Mounted once for every path with its own key.

A request is answered only when all of it is registered. If anything is wrong, the answer says what, and nothing was
registered.
"""

import msgspec
from aiohttp import web

from ropewalk.core.bearer import KeyGuard
from ropewalk.core.stats import Stats
from ropewalk.model.errors import (
    BadBody,
    LateBody,
    MalformedPublication,
    PartitionChanged,
    TooLarge,
    Unavailable,
    UnsupportedEncoding,
)
from ropewalk.model.messages import Receipt, RemoteDisconnect
from ropewalk.model.refusals import Refusal
from ropewalk.ports import Publisher
from ropewalk.protocol.body import BODY_SECONDS, KEYED, gather
from ropewalk.protocol.publications import PublicationLimits, decode_gently


class PublishEndpoint:
    def __init__(
        self, publisher: Publisher, guard: KeyGuard, limits: PublicationLimits, stats: Stats, timeout: float = BODY_SECONDS
    ) -> None:
        self._publisher = publisher
        self._guard = guard
        self._limits = limits
        self._stats = stats
        self._timeout = timeout

    def routes(self, path: str) -> list[web.RouteDef]:
        return [web.route("*", path, self.handle)]

    async def handle(self, request: web.Request) -> web.Response:
        if request.method != "POST":
            return _answer(405, {"error": "publish with POST"}, {"Allow": "POST"})
        if not self._guard.admits(request.headers.get("Authorization", "")):
            return _answer(401, {"error": "a valid bearer key is needed"}, {"WWW-Authenticate": "Bearer"})
        try:
            return _answer(201, await self._take(request))
        except MalformedPublication as error:
            self._stats.publications_refused += 1
            if error.refusal is not None:
                self._stats.refusals[error.refusal] += 1
            return _answer(422, {"error": error.reason, "index": error.index})
        except TooLarge as error:
            self._stats.publications_refused += 1
            self._guard.refused(Refusal.BODY_TOO_LARGE)
            return _answer(413, {"error": str(error)})
        except UnsupportedEncoding as error:
            self._stats.publications_refused += 1
            self._guard.refused(Refusal.BAD_BODY)
            return _answer(415, {"error": str(error)}, {"Accept-Encoding": "gzip, deflate"})
        except LateBody as error:
            self._stats.publications_refused += 1
            self._guard.refused(Refusal.BODY_TIMEOUT)
            return _unreadable(request, 408, str(error))
        except (web.RequestPayloadError, ConnectionError, BadBody):
            self._stats.publications_refused += 1
            self._guard.refused(Refusal.BAD_BODY)
            return _unreadable(request, 422, "the body cannot be read")
        except (PartitionChanged, Unavailable) as error:
            return self._not_registered(error)

    def _not_registered(self, error: PartitionChanged | Unavailable) -> web.Response:
        if isinstance(error, Unavailable):
            return _answer(503, {"error": str(error)}, {"Retry-After": "1"})
        self._stats.publications_refused += 1
        return _answer(409, {"error": str(error)})

    async def _take(self, request: web.Request) -> dict[str, object]:
        limit = self._limits.max_publish_size
        body = await gather(request.content.iter_any(), request.headers, limit, KEYED, self._timeout)
        match await decode_gently(body, self._limits, request.headers.get("Idempotency-Key", "")):
            case RemoteDisconnect() as order:
                return {"disconnected": await self._publisher.disconnect(order)}
            case publications:
                receipts = await self._publisher.publish(publications)
                return {"publications": [_shown(receipt) for receipt in receipts]}


def _shown(receipt: Receipt) -> dict[str, object]:
    """A transient publication has no position to show."""
    if not receipt.offset:
        return {"stream": receipt.stream}
    shown: dict[str, object] = {"stream": receipt.stream, "epoch": receipt.epoch, "offset": receipt.offset}
    return {**shown, "duplicate": True} if receipt.duplicate else shown


def _unreadable(request: web.Request, status: int, reason: str) -> web.Response:
    """Not chunked or compressed as it says, or never sent. aiohttp would read on after the answer and stumble over it again."""
    request.content.feed_eof()
    answer = _answer(status, {"error": reason, "index": 0})
    answer.force_close()
    return answer


def _answer(status: int, body: dict[str, object], headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode(body), content_type="application/json", headers=headers)
