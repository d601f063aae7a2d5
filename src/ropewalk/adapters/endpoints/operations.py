"""Endpoints for operators: health and metrics, the contents of the store, and the ring.

Health and metrics do not call the backend. Pages of the store are limited by number and by bytes, so that one request cannot
produce a response of a hundred large messages.
"""

import logging
from collections.abc import Callable

import msgspec
from msgspec import Struct, to_builtins

from ropewalk.adapters.endpoints.http_guard import KeyGuard, decoded, guarded, number, read_body
from ropewalk.adapters.endpoints.http_requests import HttpRequest
from ropewalk.adapters.endpoints.http_responses import HttpResponse, encode_fields, json_answer, refusal
from ropewalk.adapters.endpoints.routes import ANY, HttpRoute
from ropewalk.core.ring import parse_member
from ropewalk.model.errors import BadRequest
from ropewalk.model.history import StreamSummary
from ropewalk.model.messages import Registered
from ropewalk.model.presence import Member
from ropewalk.model.ring import RingMember
from ropewalk.ports import Backend, Inspector, Ring
from ropewalk.protocol.cable_json import fitting


class OperationsEndpoint:
    """`exposition` renders the metrics page when asked; `exposition_type` is its Content-Type."""

    def __init__(self, inspector: Inspector, exposition: Callable[[], bytes], exposition_type: str) -> None:
        self._inspector = inspector
        self._exposition = exposition
        self._exposition_type = exposition_type

    def routes(self, health_path: str = "/health", metrics_path: str = "/metrics") -> list[HttpRoute]:
        # Checkers differ in the method they use, so health answers all of them.
        probes = health_path.rstrip("/")
        metrics = [HttpRoute("GET", metrics_path, self.metrics)] if metrics_path else []
        return [
            HttpRoute(ANY, health_path, self.health),
            HttpRoute(ANY, f"{probes}/live", self.live),
            HttpRoute(ANY, f"{probes}/ready", self.health),
            *metrics,
        ]

    async def live(self, request: HttpRequest) -> HttpResponse:
        """Any answer shows that the process is alive. A failed dependency is not a reason to restart it."""
        return json_answer(200, {"status": "ok"})

    async def health(self, request: HttpRequest) -> HttpResponse:
        """An impaired node is still healthy: redirected clients would find the same impairment on other nodes."""
        report = self._inspector.report()
        if report.problems:
            return json_answer(503, {"status": "down", "reasons": report.problems})
        return json_answer(200, {"status": "ok", **({"impaired": report.impairments} if report.impairments else {})})

    async def metrics(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse(200, self._exposition(), encode_fields({"Content-Type": self._exposition_type}))


DEFAULT_LIMIT = 100
MAX_LIMIT = 1000
PAGE_BYTES = 4 << 20
_MAX_OFFSET = 2**63 - 1


class RestEndpoint:
    """Streams, history and presence, page by page. Read-only."""

    def __init__(self, backend: Backend, guard: KeyGuard) -> None:
        self._backend = backend
        self._guard = guard

    def routes(self, api_path: str = "/api") -> list[HttpRoute]:
        # More than one segment: names hold slashes, and some clients and proxies decode %2F on the way.
        return [
            HttpRoute("GET", f"{api_path}/streams", guarded(self._guard, self._streams)),
            HttpRoute("GET", f"{api_path}/streams/{{name*}}/history", guarded(self._guard, self._history)),
            HttpRoute("GET", f"{api_path}/presence/{{name*}}/users", guarded(self._guard, self._users)),
        ]

    async def _streams(self, request: HttpRequest) -> HttpResponse:
        limit = _limit(request)
        # One more than the page holds: shows whether there is a next page.
        found = await self._named(request.query.get("prefix", ""), request.query.get("after", ""), limit + 1)
        shown = found[:limit]
        return json_answer(200, {"streams": shown, "next": shown[-1].stream if len(found) > limit else None})

    async def _named(self, prefix: str, after: str, count: int) -> list[StreamSummary]:
        """The first streams whose names begin with `prefix` and come after `after`."""
        found: list[StreamSummary] = []
        after = max(after, _name_before(prefix))
        while len(found) < count:
            some = await self._backend.streams.summaries(after, count)
            found += [each for each in some if each.stream.startswith(prefix)]
            if len(some) < count or (not some[-1].stream.startswith(prefix) and some[-1].stream > prefix):
                break
            after = some[-1].stream
        return found[:count]

    async def _history(self, request: HttpRequest) -> HttpResponse:
        after = number(request, "after", 0, 0, _MAX_OFFSET)
        page = await self._backend.streams.page(request.params["name"], after, _limit(request))
        if page is None:
            return refusal(404, "no such stream")
        body: dict[str, object] = {"stream": page.stream, "epoch": page.epoch, "tip": page.tip, "oldest": page.oldest}
        return json_answer(200, {**body, "messages": [_message(item) for item in page.messages], "next": page.next_offset})

    async def _users(self, request: HttpRequest) -> HttpResponse:
        limit = number(request, "limit", DEFAULT_LIMIT, 0, MAX_LIMIT)
        found = await self._backend.presence.members(request.params["name"], request.query.get("after", ""), limit)
        page = fitting(found, PAGE_BYTES)
        records = [_record(member) for member in page.members]
        return json_answer(200, {"type": "info", "total": page.total, "records": records, "next": page.next_id})


def _name_before(prefix: str) -> str:
    """A text that all names with the prefix come after, and hardly any others before them."""
    if not prefix:
        return ""
    last = ord(prefix[-1])
    if not last:
        return prefix[:-1]
    return f"{prefix[:-1]}{chr(0xD7FF if last == 0xE000 else last - 1)}\U0010ffff"


def _message(item: Registered) -> dict[str, object]:
    """Without `exclude_socket`: it is a session's sid, and who knows a sid may take the session over."""
    shown: dict[str, object] = {"offset": item.offset, "timestamp": item.timestamp, "message": msgspec.Raw(item.payload)}
    return {**shown, "type": item.broadcast_type} if item.broadcast_type else shown


def _record(member: Member) -> dict[str, object]:
    return {"info": msgspec.Raw(member.info), "id": member.id} if member.info else {"id": member.id}


def _limit(request: HttpRequest) -> int:
    return number(request, "limit", DEFAULT_LIMIT, 1, MAX_LIMIT)


logger = logging.getLogger("ropewalk.ring")

MAX_BODY = 4096


class RingRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """One of `add`, a node as name=host:port, and `remove`, the name of one; `lost` goes with the latter."""

    add: str = ""
    remove: str = ""
    lost: bool = False


class RingEndpoint:
    """Shows and changes the ring. `guard`: of the API; `changes`: its key is never empty, even in public mode."""

    def __init__(self, ring: Ring, guard: KeyGuard, changes: KeyGuard) -> None:
        self._ring = ring
        self._guard = guard
        self._changes = changes

    def routes(self, api_path: str = "/api") -> list[HttpRoute]:
        path = f"{api_path}/ring"
        return [
            HttpRoute("GET", path, guarded(self._guard, self._show)),
            HttpRoute("POST", path, guarded(self._changes, self._change)),
        ]

    async def _show(self, request: HttpRequest) -> HttpResponse:
        return json_answer(200, to_builtins(self._ring.report(request.query.get("stream", ""))))

    async def _change(self, request: HttpRequest) -> HttpResponse:
        """The answer is the ring after the change; shards are still to move."""
        asked = decoded(await read_body(request, MAX_BODY), RingRequest, "a change of the ring")
        if bool(asked.add) == bool(asked.remove) or (asked.lost and not asked.remove):
            raise BadRequest('a change of the ring is {"add": "name=host:port"} or {"remove": "name"}, the latter with "lost"')
        if asked.add:
            await self._ring.add(_member(asked.add))
        else:
            self._ring.remove(asked.remove, asked.lost)
        logger.info("the ring was changed by a request", extra={"add": asked.add, "remove": asked.remove, "lost": asked.lost})
        return await self._show(request)


def _member(text: str) -> RingMember:
    """Raises BadRequest."""
    try:
        return parse_member(text)
    except ValueError as error:
        raise BadRequest(str(error)) from None
