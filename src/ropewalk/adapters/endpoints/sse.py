"""The SSE endpoint: a request becomes a session whose messages are sent as events, until one side ends it.

Nothing is sent before the session granted everything that the request asks for. What it wrote until then follows the 200,
and then the histories, as the client takes them.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from itertools import product

from ropewalk.adapters.endpoints.cors import OriginAllowed, cors_headers
from ropewalk.adapters.endpoints.http_guard import ANONYMOUS, BODY_SECONDS, gather
from ropewalk.adapters.endpoints.http_requests import HttpRequest
from ropewalk.adapters.endpoints.http_responses import HttpResponse, encode_fields, refusal
from ropewalk.adapters.endpoints.routes import ANY, HttpAnswer, HttpRoute
from ropewalk.adapters.endpoints.sse_link import SseLink
from ropewalk.model.closing import TOO_MANY_CONNECTIONS
from ropewalk.model.commands import Subscribe
from ropewalk.model.errors import BadRequest, LateBody, TooLarge, Unavailable, UnsupportedEncoding
from ropewalk.model.refusals import Refusal
from ropewalk.model.sessions import ConnectRequest
from ropewalk.ports import Connection, SessionHandle
from ropewalk.protocol.codec import SessionCodec
from ropewalk.protocol.event_ids import MAX_BYTES, EventIds, parse_event_id
from ropewalk.protocol.handshake import client_options, token_of
from ropewalk.protocol.sse import SseCodec
from ropewalk.protocol.sse_request import subscription_of_query, subscriptions_of_body, wants_raw

logger = logging.getLogger("ropewalk.sse")

OpenSession = Callable[[ConnectRequest, Connection, SessionCodec], SessionHandle]

METHODS = "GET, POST, OPTIONS"
MAX_BODY = 65_536

_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "private, no-cache, no-store, must-revalidate, max-age=0",
    "Pragma": "no-cache",
    "X-Accel-Buffering": "no",
    "X-Content-Type-Options": "nosniff",
}

# Shared by all connections of a kind, so that the hub encodes a message once for all of them.
_CODECS = {kind: SseCodec(*kind) for kind in product((True, False), repeat=3)}


class SseEndpoint:
    """`keepalive`: after so many silent seconds a comment is sent, which finds out that the peer is gone without a word."""

    def __init__(
        self,
        open_session: OpenSession,
        origin_allowed: OriginAllowed,
        max_subscriptions: int,
        refusals: Counter[str],
        token_param: str = "jid",
        keepalive: float = 15.0,
        timeout: float = BODY_SECONDS,
    ) -> None:
        self._open_session = open_session
        self._origin_allowed = origin_allowed
        self._max_subscriptions = max_subscriptions
        self._refusals = refusals
        self._token_param = token_param
        self._keepalive = keepalive
        self._timeout = timeout

    def routes(self, path: str = "/events") -> list[HttpRoute]:
        return [HttpRoute(ANY, path, self.handle)]

    async def handle(self, request: HttpRequest) -> HttpAnswer:
        origin = request.headers.get("origin") if "origin" in request.headers else None
        if request.method not in METHODS.split(", "):
            return refusal(405, "use GET or POST", {"Allow": METHODS})
        if not self._origin_allowed(origin):
            return refusal(403, "this origin is not allowed")
        asked_headers = request.headers.get("access-control-request-headers")
        cors = cors_headers(origin, self._origin_allowed, METHODS, asked_headers)
        if request.method == "OPTIONS":
            return HttpResponse(fields=encode_fields(cors))
        try:
            return await self._serve(request, await self._subscriptions(request), cors)
        except ConnectionError:
            return refusal(400, "the body cannot be read", cors, close=True)
        except LateBody as error:
            request.body.fail("it did not come in time")
            return refusal(408, str(error), cors, close=True)
        except BadRequest as error:
            self._count(error.refusal)
            return refusal(400, str(error), cors)
        except TooLarge as error:
            self._count(Refusal.BODY_TOO_LARGE)
            return refusal(413, str(error), cors)
        except UnsupportedEncoding as error:
            return refusal(415, str(error), cors)
        except Unavailable as error:
            return refusal(503, str(error), cors)

    def _count(self, why: Refusal | None) -> None:
        if why is not None:
            self._refusals[why] += 1
            logger.debug("request refused", extra={"reason": why.value})

    async def _subscriptions(self, request: HttpRequest) -> list[Subscribe]:
        params = request.query
        # Not every client can set a header; where both are given, the header is what the browser itself remembers.
        last = parse_event_id(request.headers.get("last-event-id") or params.get("last_event_id", ""))
        if request.method == "GET":
            return [subscription_of_query(params, last)]
        body = await gather(request.body.chunks(), request.headers, MAX_BODY, ANONYMOUS, self._timeout)
        return subscriptions_of_body(body, last, self._max_subscriptions)

    async def _serve(self, request: HttpRequest, subscriptions: list[Subscribe], cors: dict[str, str]) -> HttpAnswer:
        link = SseLink(request, self._keepalive)
        keyed = len(subscriptions) > 1
        codec = _CODECS[request.method == "GET", wants_raw(request.query), keyed]
        session = self._open_session(self._connect_request(request), link, codec)
        link.attach(session)
        commands: list[asyncio.Task[bool]] = []
        request.exchange.when_lost.append(link.lost)
        try:
            if not await session.wait_opened():
                return _refused(link.close_code, cors)
            for subscribe in subscriptions:
                if request.exchange.transport is None:  # so the session has ended, and nothing may be added to it
                    break
                commands.append(asyncio.create_task(session.submit(subscribe)))
                granted = await link.decided(commands[-1])
                if link.overfull:
                    raise Unavailable("more messages came than can wait until all subscriptions are granted")
                if not granted:
                    return refusal(400, f"subscription rejected: {subscribe.identifier}", cors)
            return await link.run({**_HEADERS, **cors}, _event_ids(session, subscriptions, keyed))
        finally:
            if link.lost in request.exchange.when_lost:
                request.exchange.when_lost.remove(link.lost)
            session.connection_lost()
            link.release()
            if commands:
                await asyncio.wait(commands)

    def _connect_request(self, request: HttpRequest) -> ConnectRequest:
        headers = request.headers.joined()
        params = request.query
        remote, scheme = request.client()
        return ConnectRequest(
            url=f"{scheme}://{headers.get('host', '')}{request.target}",
            path=request.path,
            headers=headers,
            params=params,
            remote=remote,
            token=token_of(self._token_param, headers, params),
            options=client_options(headers, params),
        )


def _refused(close_code: int, cors: dict[str, str]) -> HttpResponse:
    """Of a session that was ended before it was opened."""
    if close_code == TOO_MANY_CONNECTIONS.code:
        return refusal(429, "too many connections", {"Retry-After": "5", **cors})
    return refusal(401, "unauthorized", cors)


def _event_ids(session: SessionHandle, subscriptions: list[Subscribe], keyed: bool) -> EventIds:
    known = {subscribe.identifier: subscribe.history.streams for subscribe in subscriptions if subscribe.history}
    ids = EventIds(session.streams(), known, keyed)
    if ids.longest() > MAX_BYTES:
        raise BadRequest(
            f"the positions of all streams do not fit into an event id of {MAX_BYTES} bytes: "
            "use fewer streams on one connection, or a WebSocket"
        )
    return ids
