"""Shared by the HTTP endpoints: authentication by key, bounded bodies, numbers in queries, JSON responses and refusals."""

import asyncio
import logging
import zlib
from collections import Counter
from collections.abc import AsyncIterable
from typing import TypeVar

import msgspec

from ropewalk.adapters.endpoints.http_requests import HttpRequest, RequestHeaders
from ropewalk.adapters.endpoints.http_responses import HttpResponse, json_answer, refusal
from ropewalk.adapters.endpoints.routes import HttpAnswer, HttpHandler
from ropewalk.core.signatures import matches
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
from ropewalk.model.nesting import is_too_deep
from ropewalk.model.refusals import Refusal
from ropewalk.protocol.json_errors import why_no_json

logger = logging.getLogger("ropewalk.http")

ACCEPTED_ENCODINGS = {"Accept-Encoding": "gzip, deflate"}  # RFC 9110 section 15.5.16: what a 415 means here

T = TypeVar("T")


class KeyGuard:
    """Checks the bearer key of requests and counts what its endpoints refuse. An empty key lets everyone in (public mode).

    `refusals` is the node's count by reason; the key can be replaced while the server runs.
    """

    def __init__(self, key: str, refusals: Counter[str]) -> None:
        self.key = key
        self.refusals = refusals

    def admits(self, authorization: str) -> bool:
        if self.knows(authorization):
            return True
        self.refused(Refusal.BAD_KEY)
        return False

    def knows(self, authorization: str) -> bool:
        """The same, without counting a refusal."""
        if not self.key:
            return True
        scheme, _, given = authorization.partition(" ")
        return scheme.lower() == "bearer" and matches(given.strip(), self.key)

    def refused(self, why: Refusal) -> None:
        self.refusals[why] += 1
        logger.debug("request refused", extra={"reason": why.value})


def guarded(guard: KeyGuard, answer: HttpHandler) -> HttpHandler:
    """Answers requests with the guard's key only, and turns client errors into refusals."""

    async def handle(request: HttpRequest) -> HttpAnswer:
        if not guard.admits(request.headers.get("authorization")):
            return refusal(401, "a valid bearer key is needed", {"WWW-Authenticate": "Bearer"})
        try:
            return await answer(request)
        except ConnectionError:
            guard.refused(Refusal.BAD_BODY)
            return refusal(400, "the body cannot be read", close=True)
        except LateBody as error:
            guard.refused(Refusal.BODY_TIMEOUT)
            request.body.fail("it did not come in time")
            return refusal(408, str(error), close=True)
        except RopewalkError as error:
            return answer_to(error, guard)

    return handle


def answer_to(error: RopewalkError, guard: KeyGuard) -> HttpResponse:
    """Count the error and return its response. Re-raises anything that is not a client error."""
    if isinstance(error, TooLarge):
        guard.refused(Refusal.BODY_TOO_LARGE)
    elif isinstance(error, BadBody | UnsupportedEncoding):
        guard.refused(Refusal.BAD_BODY)
    elif isinstance(error, ClientError) and error.refusal is not None:
        guard.refused(error.refusal)
    return _refused(error)


def _refused(error: RopewalkError) -> HttpResponse:
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
    """Decode the JSON of a body. Raises BadRequest; `what` is the name of the expected body."""
    if is_too_deep(body):
        raise TooDeep(what)
    try:
        return msgspec.json.decode(body, type=kind)
    except UnicodeDecodeError:
        raise BadRequest(f"{what} cannot be read: it is not UTF-8") from None
    except msgspec.MsgspecError as error:
        raise BadRequest(f"{what} cannot be read: {why_no_json(body, error)}") from None


def number(request: HttpRequest, name: str, default: int | None, low: int, high: int) -> int:
    """A query parameter; required if `default` is None."""
    text = request.query.get(name, "")
    if not text and default is not None:
        return default
    return whole(text, name, low, high)


def whole(text: str, name: str, low: int, high: int) -> int:
    # int() would also take signs, spaces, underscores and digits of other scripts.
    if not (text.isascii() and text.isdigit() and len(text) <= 19 and low <= int(text) <= high):
        raise BadRequest(f"{name} must be a whole number from {low} to {high}")
    return int(text)


# --- request bodies: gathered as they arrive, inflated where they are compressed, never past a limit -----------------

BODY_SECONDS = 30.0
"""How long a whole body may take. A sender that trickles holds memory and a connection that others could have."""

INLINE_BYTES = 64 * 1024
"""How much a body may become on the event loop; the rest of a larger one is inflated in a thread."""

INLINE_INPUT = 4 * 1024
"""How large a body may be as it was sent, to be inflated there: blocks that become nothing cost time too. With both bounds it
is well under a millisecond's work."""

_AUTO_HEADER = 32 + zlib.MAX_WBITS  # detects gzip or zlib
_RAW = -zlib.MAX_WBITS


class Budget:
    """The bytes of unfinished bodies that may be in memory at once. Beyond it a body is refused with 503 instead of waiting."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.held = 0

    def take(self, size: int) -> None:
        if self.held + size > self._limit:
            raise Unavailable("too many request bodies are being sent at once")
        self.held += size

    def give_back(self, size: int) -> None:
        self.held -= size


KEYED = Budget(256 << 20)
"""Shared by the endpoints that ask for a key."""

ANONYMOUS = Budget(32 << 20)
"""Shared by those that do not, so that strangers cannot use up what publishers need."""


async def read_body(request: HttpRequest, limit: int) -> bytes:
    """The body of a request whose key was accepted."""
    return await gather(request.body.chunks(), request.headers, limit)


async def gather(
    chunks: AsyncIterable[bytes],
    headers: RequestHeaders,
    limit: int,
    budget: Budget = KEYED,
    seconds: float = BODY_SECONDS,
) -> bytes:
    """The body, inflated. Raises TooLarge, UnsupportedEncoding, BadBody, Unavailable, and LateBody after `seconds`."""
    encoding = headers.get("content-encoding").strip().lower()
    if encoding not in ("", "identity", "gzip", "x-gzip", "deflate"):
        raise UnsupportedEncoding("a body may be sent plain, or with Content-Encoding gzip or deflate")
    # The limit applies before and after decompression. The announced size may be missing or wrong.
    announced = headers.get("content-length")
    if announced.isdecimal() and (len(announced) > 19 or int(announced) > limit):
        raise _too_large(limit)
    body = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for chunk in chunks:
                if len(body) + len(chunk) > limit:
                    raise _too_large(limit)
                budget.take(len(chunk))
                body += chunk
        return bytes(body) if encoding in ("", "identity") else await _inflated(bytes(body), encoding, limit)
    except TimeoutError:
        raise LateBody("the body did not come") from None
    finally:
        budget.give_back(len(body))


async def _inflated(data: bytes, encoding: str, limit: int) -> bytes:
    # "deflate" means the zlib format, but some senders leave its header out.
    raw = encoding == "deflate" and (data[:1] or b"\x78")[0] & 0x0F != zlib.DEFLATED
    inflater = zlib.decompressobj(_RAW if raw else _AUTO_HEADER)
    begin, rest, remaining = b"", b"", data
    try:
        if len(data) <= INLINE_INPUT:
            begin = inflater.decompress(data, min(INLINE_BYTES, limit + 1))
            remaining = inflater.unconsumed_tail
        if not inflater.eof and len(begin) <= limit:
            # zlib releases the GIL while it works.
            rest = await asyncio.to_thread(inflater.decompress, remaining, limit + 1 - len(begin))
    except zlib.error:
        raise BadBody("the body does not match its Content-Encoding") from None
    if len(begin) + len(rest) > limit:
        raise _too_large(limit)
    if not inflater.eof or inflater.unused_data:
        raise BadBody("the compressed body does not end where its data ends")
    return begin + rest


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"the body may have {limit} bytes")
