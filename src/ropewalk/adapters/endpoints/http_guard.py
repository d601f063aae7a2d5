"""Shared by the HTTP endpoints: authentication by key, numbers in queries, JSON responses and refusals."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec
from aiohttp import web

from ropewalk.core.bearer import KeyGuard
from ropewalk.model.errors import (
    BadBody,
    BadRequest,
    ClientError,
    Conflict,
    LateBody,
    LimitReached,
    MalformedPublication,
    RopewalkError,
    TooDeep,
    TooLarge,
    Unavailable,
    UnsupportedEncoding,
)
from ropewalk.model.nesting import too_deep
from ropewalk.model.refusals import Refusal
from ropewalk.protocol.body import gather

ACCEPTED_ENCODINGS = {"Accept-Encoding": "gzip, deflate"}  # RFC 9110 section 15.5.16: what a 415 means here

T = TypeVar("T")

HttpHandler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def json_answer(status: int, body: dict[str, object], headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode(body), content_type="application/json", headers=headers)


def refusal(status: int, reason: str, headers: dict[str, str] | None = None) -> web.Response:
    return json_answer(status, {"error": reason}, headers)


def unreadable(request: web.Request, answer: web.Response) -> web.Response:
    """`answer`, to a body that is not chunked or compressed as it says, or was never sent. aiohttp would read on after the
    answer and stumble over it again."""
    request.content.feed_eof()
    answer.force_close()
    return answer


def guarded(guard: KeyGuard, answer: HttpHandler) -> HttpHandler:
    """Answers only those whom `guard` admits, and turns what is raised on purpose into a refusal."""

    async def handle(request: web.Request) -> web.StreamResponse:
        if not guard.admits(request.headers.get("Authorization", "")):
            return refusal(401, "a valid bearer key is needed", {"WWW-Authenticate": "Bearer"})
        try:
            return await answer(request)
        except (web.RequestPayloadError, ConnectionError):
            guard.refused(Refusal.BAD_BODY)
            return unreadable(request, refusal(400, "the body cannot be read"))
        except LateBody as error:
            guard.refused(Refusal.BODY_TIMEOUT)
            return unreadable(request, refusal(408, str(error)))
        except RopewalkError as error:
            if isinstance(error, TooLarge):
                guard.refused(Refusal.BODY_TOO_LARGE)
            elif isinstance(error, BadBody | UnsupportedEncoding):
                guard.refused(Refusal.BAD_BODY)
            elif isinstance(error, ClientError) and error.refusal is not None:
                guard.refused(error.refusal)
            return _refused(error)

    return handle


async def body_of(request: web.Request, limit: int) -> bytes:
    """The body of a request whose key was accepted."""
    return await gather(request.content.iter_any(), request.headers, limit)


def _refused(error: RopewalkError) -> web.Response:
    match error:
        case MalformedPublication():
            return json_answer(422, {"error": error.reason, "index": error.index})
        case Conflict():
            return json_answer(409, {"error": str(error), "missing": error.missing})
        case BadRequest():
            return refusal(400, str(error))
        case TooLarge():
            return refusal(413, str(error))
        case UnsupportedEncoding():
            return refusal(415, str(error), ACCEPTED_ENCODINGS)
        case LimitReached():
            return refusal(507, str(error))
        case Unavailable():
            return refusal(503, str(error), {"Retry-After": "1"})
    raise error


def decoded(body: bytes, kind: type[T], what: str) -> T:
    """The JSON of a body. Raises BadRequest, in which `what` names what it should have been."""
    if too_deep(body):
        raise TooDeep(what)
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.MsgspecError as error:
        raise BadRequest(f"{what} cannot be read: {error}") from None


def number(request: web.Request, name: str, default: int | None, low: int, high: int) -> int:
    """A query parameter; `default` None says that it must be there."""
    text = request.query.get(name, "")
    if not text and default is not None:
        return default
    return whole(text, name, low, high)


def whole(text: str, name: str, low: int, high: int) -> int:
    # int() would also take signs, spaces, underscores and digits of other scripts.
    if not (text.isascii() and text.isdigit() and len(text) <= 19 and low <= int(text) <= high):
        raise BadRequest(f"{name} must be a whole number from {low} to {high}")
    return int(text)
