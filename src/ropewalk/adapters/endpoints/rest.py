"""The REST endpoint: what the backend keeps, page by page. Read-only.

A page is bounded by number and by bytes, so that one request cannot produce a response of a hundred large messages.
"""

import msgspec

from ropewalk.adapters.endpoints.http_guard import KeyGuard, guarded, number
from ropewalk.adapters.endpoints.http_requests import HttpRequest
from ropewalk.adapters.endpoints.http_responses import HttpResponse, json_answer, refusal
from ropewalk.adapters.endpoints.routes import HttpRoute
from ropewalk.model.messages import Registered
from ropewalk.model.presence import Member
from ropewalk.ports import Backend
from ropewalk.protocol.cable_json import fitting

DEFAULT_LIMIT = 100
MAX_LIMIT = 1000
PAGE_BYTES = 4 << 20
_MAX_OFFSET = 2**63 - 1


class RestEndpoint:
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
        found = await self._backend.streams.summaries(request.query.get("after", ""), limit + 1)
        shown = found[:limit]
        return json_answer(200, {"streams": shown, "next": shown[-1].stream if len(found) > limit else None})

    async def _history(self, request: HttpRequest) -> HttpResponse:
        after = number(request, "after", 0, 0, _MAX_OFFSET)
        page = await self._backend.streams.page(request.params["name"], after, _limit(request))
        if page is None:
            return refusal(404, "no such stream")
        body: dict[str, object] = {"stream": page.stream, "epoch": page.epoch, "tip": page.tip, "oldest": page.oldest}
        return json_answer(200, {**body, "messages": [_message(item) for item in page.messages], "next": page.next_offset})

    async def _users(self, request: HttpRequest) -> HttpResponse:
        found = await self._backend.presence.page(request.params["name"], request.query.get("after", ""), _limit(request))
        page = fitting(found, PAGE_BYTES)
        records = [_record(member) for member in page.members]
        return json_answer(200, {"type": "info", "total": page.total, "records": records, "next": page.next_id})


def _message(item: Registered) -> dict[str, object]:
    """Without `exclude_socket`: it is a session's sid, and who knows a sid may take the session over."""
    shown: dict[str, object] = {"offset": item.offset, "timestamp": item.timestamp, "message": msgspec.Raw(item.payload)}
    return {**shown, "type": item.broadcast_type} if item.broadcast_type else shown


def _record(member: Member) -> dict[str, object]:
    return {"info": msgspec.Raw(member.info), "id": member.id} if member.info else {"id": member.id}


def _limit(request: HttpRequest) -> int:
    return number(request, "limit", DEFAULT_LIMIT, 1, MAX_LIMIT)
