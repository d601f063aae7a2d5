"""The SSE endpoint: opens a session for a request and sends its messages as events, until one side ends it.

Nothing is sent before the session has granted all requested subscriptions. The messages written until then follow the 200, and
then the histories, as fast as the client reads them.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import product
from typing import Protocol

from ropewalk.adapters.endpoints.http_guard import ANONYMOUS, gather
from ropewalk.adapters.endpoints.http_requests import HttpRequest
from ropewalk.adapters.endpoints.http_responses import HttpResponse, ResponseStream, encode_fields, refusal
from ropewalk.adapters.endpoints.routes import ANY, HttpAnswer, HttpRoute
from ropewalk.adapters.endpoints.socket_writes import unsent_bytes
from ropewalk.model.closing import TOO_MANY_CONNECTIONS
from ropewalk.model.commands import Subscribe
from ropewalk.model.errors import BadRequest, LateBody, TooLarge, Unavailable, UnsupportedEncoding
from ropewalk.model.refusals import Refusal
from ropewalk.model.sessions import ConnectRequest
from ropewalk.ports import Connection, SessionHandle
from ropewalk.protocol.codec import SessionCodec
from ropewalk.protocol.event_ids import MAX_BYTES, EventIds, parse_event_id
from ropewalk.protocol.handshake import asks_positions, client_options, find_token
from ropewalk.protocol.sse import SseCodec, subscription_of_query, subscriptions_of_body, wants_raw

HIGH_WATER = 65_536
EARLY_BYTES = 1024 * 1024  # confirmations and live messages that may come before the answer begins
FLUSH_TIMEOUT = 5.0
_COMMENT = b":\n\n"


class SseLink:
    """The `Connection` of the session. The handler of the request sends what the session writes, in `run`.

    Writes are collected and sent in one piece whenever the socket accepts more. History waits until the response begins: a
    request is granted as a whole, or refused with a status.

    Attributes:
        overfull: too much was written before the response began.
        close_code: of the end of the session; 0 before.
    """

    direct = None

    def __init__(self, request: HttpRequest, keepalive: float) -> None:
        self.overfull = False
        self.close_code = 0
        self._request = request
        self._keepalive = keepalive
        self._session: SessionHandle | None = None
        self._ids: EventIds | None = None
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._answering = False
        self._joined = False  # all histories are sent
        self._closing = False
        self._paused = False
        self._wake = asyncio.Event()
        self._histories: list[tuple[asyncio.Task[object], asyncio.Future[None]]] = []
        self._deferred: asyncio.Future[None] | None = None

    # --- the engine's side -------------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        if self._closing or not data:
            return
        self._waiting.append(data)
        self._waiting_bytes += len(data)
        self._wake.set()
        if self._answering:
            self._pause_if_full()
        elif self._waiting_bytes > EARLY_BYTES:
            self.overfull = self._closing = True

    def close(self, code: int, text: str) -> None:
        """Events have no close code: the reason went out as a `disconnect` event, and the answer simply ends."""
        if not self._closing:
            self.close_code = code
            self._closing = True
            self._wake.set()
            # A peer that does not read would block the handler indefinitely.
            asyncio.get_running_loop().call_later(FLUSH_TIMEOUT, self._abort)

    def pending(self) -> int:
        transport = self._request.exchange.transport
        return self._waiting_bytes + (transport.get_write_buffer_size() if transport else 0)

    async def wait_ready(self) -> None:
        """Before the answer has begun, the command that is being handled waits here, and `decided` returns."""
        task = asyncio.current_task()
        if self._answering or self._closing or task is None:
            return
        waiting = asyncio.get_running_loop().create_future()
        self._histories.append((task, waiting))
        if self._deferred is not None and not self._deferred.done():
            self._deferred.set_result(None)
        await waiting

    def unsent(self) -> int:
        transport = self._request.exchange.transport
        return self._waiting_bytes + (unsent_bytes(transport) if transport else 0)

    def hold_reading(self, hold: bool) -> None:
        """No effect: all input of the client was in its request."""

    # --- the handler's side ------------------------------------------------------------------------------------------

    def attach(self, session: SessionHandle) -> None:
        self._session = session

    def lost(self) -> None:
        """The connection has ended."""
        self._closing = True
        self._waiting.clear()
        self._waiting_bytes = 0
        self._wake.set()
        if self._session is not None:
            self._session.connection_lost()

    async def decided(self, command: asyncio.Task[bool]) -> bool:
        """Whether a command was granted: it is done, or its history waits for the answer to begin."""
        self._deferred = asyncio.get_running_loop().create_future()
        await asyncio.wait((command, self._deferred), return_when=asyncio.FIRST_COMPLETED)
        return not command.done() or command.result()

    async def run(self, fields: Mapping[str, str], ids: EventIds) -> ResponseStream:
        """Returns when either side has ended it."""
        self._ids = ids
        if self._request.exchange.transport is not None:
            # Ours and the transport's mark are the same, so that "drained" below means the same to both.
            self._request.exchange.transport.set_write_buffer_limits(high=HIGH_WATER)
        stream = ResponseStream(self._request, 200, fields, close=True)
        self._answering = True
        self._pause_if_full()
        histories = asyncio.create_task(self._send_histories())
        try:
            while await self._something_to_do():
                await self._drain(stream)
            await stream.end()
        except ConnectionError:
            self._closing = True
        finally:
            histories.cancel()
        return stream

    def release(self) -> None:
        """Release the waiting commands. Their output is discarded."""
        self._closing = True
        self._session = None  # it knows this link: nothing but the garbage collector would free the two
        for _, waiting in self._histories:
            if not waiting.done():
                waiting.set_result(None)

    async def _send_histories(self) -> None:
        """Handled one after another, so that at most one piece of one history is pending for a slow client."""
        for command, waiting in self._histories:
            waiting.set_result(None)
            await asyncio.wait([command])
        self._joined = True

    async def _something_to_do(self) -> bool:
        """False once the end is reached: closed, and all written."""
        if not self._waiting and not self._closing:
            self._wake.clear()
            try:
                async with asyncio.timeout(self._keepalive):
                    await self._wake.wait()
            except TimeoutError:
                self.write(_COMMENT)
        return bool(self._waiting)

    async def _drain(self, stream: ResponseStream) -> None:
        joined = self._joined
        data = b"".join(self._waiting)
        self._waiting.clear()
        self._waiting_bytes = 0
        if self._ids is None:
            await stream.write(data)
        else:
            for piece in self._ids.stamped(data):
                await stream.write(piece)
            if joined and self._ids.plain:
                self._ids = None  # offsets only grow now: the ids of a single stream are right as the codec writes them
        if self._paused and self.pending() <= HIGH_WATER:
            self._paused = False
            if self._session is not None:
                self._session.resume_writing()

    def _pause_if_full(self) -> None:
        if not self._paused and self._session is not None and self.pending() > HIGH_WATER:
            self._paused = True
            self._session.pause_writing()

    def _abort(self) -> None:
        if self._request.exchange.transport is not None:
            self._request.exchange.transport.abort()


class OriginAllowed(Protocol):
    """Whether a request with this Origin header (None: without one) may be answered; `everyone`: of any origin."""

    @property
    def everyone(self) -> bool: ...
    def __call__(self, origin: str | None) -> bool: ...


def cors_headers(origin: str | None, origin_allowed: OriginAllowed, methods: str, asked_headers: str = "") -> dict[str, str]:
    """CORS headers for an allowed origin, which a browser needs before its page may read the response.

    Without a list of allowed origins, or with `*` in it, all pages may read, but without credentials: otherwise any page could
    use the cookies of its visitor. With a list, the origin may use credentials.
    """
    if origin is None:
        return {}
    headers = {"Access-Control-Allow-Methods": methods}
    if asked_headers:
        headers["Access-Control-Allow-Headers"] = asked_headers
    if origin_allowed.everyone:
        return {"Access-Control-Allow-Origin": "*", **headers}
    return {
        "Access-Control-Allow-Origin": origin,
        "Access-Control-Allow-Credentials": "true",
        "Vary": "Origin",
        **headers,
    }


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
_CODECS = {kind: SseCodec(*kind) for kind in product((True, False), repeat=4)}


class SseEndpoint:
    """`keepalive`: seconds without an event after which a comment is sent, which detects dead connections."""

    def __init__(
        self,
        open_session: OpenSession,
        origin_allowed: OriginAllowed,
        max_subscriptions: int,
        refusals: Counter[str],
        token_param: str = "jid",
        keepalive: float = 15.0,
    ) -> None:
        self._open_session = open_session
        self._origin_allowed = origin_allowed
        self._max_subscriptions = max_subscriptions
        self._refusals = refusals
        self._token_param = token_param
        self._keepalive = keepalive

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
        body = await gather(request.body.chunks(), request.headers, MAX_BODY, ANONYMOUS)
        return subscriptions_of_body(body, last, self._max_subscriptions)

    async def _serve(self, request: HttpRequest, subscriptions: list[Subscribe], cors: dict[str, str]) -> HttpAnswer:
        link = SseLink(request, self._keepalive)
        keyed = len(subscriptions) > 1
        codec = _CODECS[request.method == "GET", wants_raw(request.query), keyed, asks_positions(request.query)]
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
            token=find_token(self._token_param, headers, params),
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
