"""JSON responses of the HTTP endpoints."""

import msgspec
from aiohttp import web


def json_answer(status: int, body: dict[str, object], headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode(body), content_type="application/json", headers=headers)


def refusal(status: int, reason: str, headers: dict[str, str] | None = None) -> web.Response:
    return json_answer(status, {"error": reason}, headers)


def unreadable(request: web.Request, status: int, reason: str, headers: dict[str, str]) -> web.Response:
    """Not chunked or compressed as it says, or never sent. aiohttp would read on after the answer and stumble over it again."""
    request.content.feed_eof()
    answer = refusal(status, reason, headers)
    answer.force_close()
    return answer
