"""The publish endpoint: an HTTP POST becomes registered publications. Mounted once for every path with its own key.

A request is answered only when all of it is registered. If anything is wrong, the answer says what, and nothing was
registered.
"""

import logging
import time
from collections.abc import Coroutine, Sequence
from email.utils import formatdate
from typing import Any, TypeVar

from aiohttp import web
from aiohttp.http import SERVER_SOFTWARE
from msgspec.json import encode

from ropewalk.adapters.endpoints.http_guard import (
    BODY_SECONDS,
    KEYED,
    KeyGuard,
    answer_to,
    asked_for,
    gather,
    guarded,
    json_answer,
    refusal,
    unreadable,
)
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
from ropewalk.protocol.plain_request import PlainHead
from ropewalk.protocol.publications import LARGE_BYTES, PublicationLimits, decode, decode_gently

logger = logging.getLogger("ropewalk.http")

UNREADABLE = "the body cannot be read"

T = TypeVar("T")


class PublishEndpoint:
    """`handle` is for aiohttp. `takes`, `publications` and `answer` are for plain requests, which need no aiohttp.

    `instant`: the publisher never suspends when it publishes.
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
        self._most_plain = min(limits.max_publish_size, LARGE_BYTES)  # what is larger is decoded in pieces
        self.instant = instant

    def routes(self, path: str) -> list[web.RouteDef]:
        return [web.route("*", path, self.handle, expect_handler=asked_for(self._guard, self._limits.max_publish_size))]

    # --- any request --------------------------------------------------------------------------------------------------

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
            self.cut_off()
            return unreadable(request, json_answer(422, {"error": UNREADABLE, "index": 0}))

    def _unreadable(self, request: web.Request, status: int, reason: str, why: Refusal) -> web.Response:
        self._guard.refused(why)
        return unreadable(request, json_answer(status, {"error": reason, "index": 0}))

    async def _take(self, request: web.Request) -> web.Response:
        key = _idempotency_key(request)
        limit = self._limits.max_publish_size
        body = await gather(request.content.iter_any(), request.headers, limit, KEYED, self._timeout)
        match await decode_gently(body, self._limits, key):
            case RemoteDisconnect() as order:
                return json_answer(201, {"disconnected": await self._publisher.disconnect(order)})
            case publications:
                return await self._register(publications)

    async def _register(self, publications: Sequence[Publication]) -> web.Response:
        try:
            receipts = await self._publisher.publish(publications)
        except RopewalkError as error:
            return self._refused(error, publications)
        return web.Response(status=201, body=shown(receipts), content_type="application/json")

    def _refused(self, error: RopewalkError, publications: Sequence[Publication]) -> web.Response:
        """What the publisher said no to."""
        if isinstance(error, ClientError):
            self._stats.publications_refused += 1
        if isinstance(error, PartitionChanged):
            return json_answer(409, {"error": str(error), "index": _index_of(error, publications)})
        return answer_to(error, self._guard)

    # --- plain requests -----------------------------------------------------------------------------------------------

    def takes(self, head: PlainHead) -> bool:
        """Whether a request with this head is answered here once its body has come. Whatever is to be refused is not."""
        headers = head.headers
        if head.method != b"POST" or head.length > self._most_plain or b"content-encoding" in headers:
            return False
        return self._guard.knows(headers.get(b"authorization", b"").decode())

    def publications(self, head: PlainHead, body: bytes) -> list[Publication] | None:
        """None if the body is something else, which `handle` will answer."""
        try:
            found = decode(body, self._limits, head.headers.get(b"idempotency-key", b"").decode())
        except MalformedPublication:
            return None
        return None if isinstance(found, RemoteDisconnect) else found

    async def answer(self, publications: Sequence[Publication]) -> tuple[int, bytes]:
        """The status and the whole response. Never raises; does not suspend where the publisher is `instant`."""
        try:
            try:
                return 201, created(shown(await self._publisher.publish(publications)))
            except RopewalkError as error:
                response = self._refused(error, publications)
        except Exception:
            logger.exception("a publish request failed")
            response = refusal(500, "the server failed")
        return response.status, on_the_wire(response)

    def cut_off(self) -> None:
        """Count a connection that was lost in the middle of a body."""
        self._stats.publications_refused += 1
        self._guard.refused(Refusal.BAD_BODY)


def _idempotency_key(request: web.Request) -> str:
    """Empty without one. Raises BadRequest where there are several: nobody can tell which one was meant. (A plain head has no
    header twice.)"""
    given = request.headers.getall("Idempotency-Key", ())
    if len(given) > 1:
        raise BadRequest("the header Idempotency-Key may be given once")
    return given[0] if given else ""


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


# --- responses as aiohttp writes them ---------------------------------------------------------------------------------


class _Created:
    """Writes a 201. What is the same for all of them is made once a second."""

    def __init__(self) -> None:
        self._second = 0
        self._template = b""

    def __call__(self, body: bytes) -> bytes:
        second = int(time.time())
        if second != self._second:
            self._second = second
            empty = on_the_wire(web.Response(status=201, body=b"", content_type="application/json"))
            self._template = empty.replace(b"Content-Length: 0", b"Content-Length: %d") + b"%b"
        return self._template % (len(body), body)


created = _Created()


def on_the_wire(response: web.Response) -> bytes:
    body = response.body
    assert isinstance(body, bytes)
    own = {"Content-Length": str(len(body)), "Date": formatdate(usegmt=True), "Server": SERVER_SOFTWARE}
    lines = [f"HTTP/1.1 {response.status} {response.reason}", *(f"{name}: {value}" for name, value in response.headers.items())]
    lines += [f"{name}: {value}" for name, value in own.items() if name not in response.headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


def completed(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that does not suspend."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    coroutine.close()
    raise RuntimeError("it was to be done at once")
