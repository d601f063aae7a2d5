"""Requests that no endpoint takes: a path where nothing is, or a method that its path does not know. Refused as JSON.

A route and not a middleware: what an endpoint takes does not pass through it.
"""

from aiohttp import web

from ropewalk.adapters.endpoints.http_guard import refusal


def last_route() -> web.RouteDef:
    """Matches everything, so it comes after all others."""
    return web.route("*", r"/{path:[\s\S]*}", refuse)


async def refuse(request: web.Request) -> web.Response:
    allowed = await _methods_of_path(request)
    if not allowed:
        return refusal(404, "no such path")
    allow = ", ".join(sorted(allowed))
    return refusal(405, f"the path knows {allow}, not {request.method}", {"Allow": allow})


async def _methods_of_path(request: web.Request) -> set[str]:
    allowed: set[str] = set()
    for resource in request.app.router.resources():
        if resource is not request.match_info.route.resource:
            _, methods = await resource.resolve(request)
            allowed |= methods
    return allowed
