"""JSON responses of the HTTP endpoints."""

import msgspec
from aiohttp import web


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
