"""The ring of this server over HTTP: what it looks like, and nodes that are added and removed."""

import logging

from msgspec import Struct, to_builtins

from ropewalk.adapters.endpoints.http_guard import KeyGuard, body_of, decoded, guarded
from ropewalk.adapters.endpoints.http_requests import HttpRequest
from ropewalk.adapters.endpoints.http_responses import HttpResponse, json_answer
from ropewalk.adapters.endpoints.routes import HttpRoute
from ropewalk.core.ring import parse_member
from ropewalk.model.errors import BadRequest
from ropewalk.model.ring import RingMember
from ropewalk.ports import Ring

logger = logging.getLogger("ropewalk.ring")

MAX_BODY = 4096


class RingRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """One of `add`, a node as name=host:port, and `remove`, the name of one; `lost` goes with the latter."""

    add: str = ""
    remove: str = ""
    lost: bool = False


class RingEndpoint:
    """`guard` is that of the API, `changes` that of changes: its key is never empty, also in public mode."""

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
        asked = decoded(await body_of(request, MAX_BODY), RingRequest, "a change of the ring")
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
