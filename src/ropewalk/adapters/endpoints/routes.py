"""The table of HTTP routes: which handler answers a method and a path. Anything else is refused as JSON with 404 or 405."""

import re
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, NamedTuple, Protocol, TypeVar

from ropewalk.adapters.endpoints.http_requests import HttpRequest, decode_path
from ropewalk.adapters.endpoints.http_responses import HttpResponse, ResponseStream, refusal

HttpAnswer = HttpResponse | ResponseStream
HttpHandler = Callable[[HttpRequest], Awaitable[HttpAnswer]]

ANY = "*"
T = TypeVar("T")


class QuickHandler(Protocol):
    """Answers small requests in the same turn of the event loop, or with less work than its handler.

    `instant`: its coroutines never suspend.
    """

    instant: bool

    def takes(self, request: HttpRequest) -> bool:
        """Whether to wait for the whole body, judged by the head. It must be small and have a length."""

    def answer(self, request: HttpRequest, body: bytes) -> Coroutine[Any, Any, HttpResponse] | None:
        """None leaves the request to the route's handler."""

    def cut_off(self) -> None:
        """The connection was lost before the body was complete."""


class HttpRoute(NamedTuple):
    """A route. A route for GET also answers HEAD.

    Attributes:
        method: `*` stands for all methods.
        path: may have names in braces: `{name}` is one segment, `{name*}` any number of characters.
        quick: tried first, for any method, if the path has no names.
    """

    method: str
    path: str
    handler: HttpHandler
    quick: QuickHandler | None = None


_SEGMENT, _ANYTHING = "[^/]+", r"[\s\S]+"  # a dot would leave out line breaks
_NAMED = re.compile(r"\{(\w+)(\*?)\}")


def _pattern(path: str) -> re.Pattern[str]:
    pattern, done = "", 0
    for name in _NAMED.finditer(path):
        pattern += re.escape(path[done : name.start()]) + f"(?P<{name[1]}>{_ANYTHING if name[2] else _SEGMENT})"
        done = name.end()
    return re.compile(pattern + re.escape(path[done:]))


class HttpRouter:
    """Finds the handler of a request. Paths without names are looked up first; then patterns, in the order of the table."""

    def __init__(self) -> None:
        self._exact: dict[str, dict[str, HttpHandler]] = {}
        self._patterns: dict[re.Pattern[str], dict[str, HttpHandler]] = {}
        self.quick: dict[str, QuickHandler] = {}

    def add(self, routes: Iterable[HttpRoute]) -> None:
        """The first route of a method and a path wins."""
        for route in routes:
            if "{" in route.path:
                handlers = self._patterns.setdefault(_pattern(route.path), {})
            else:
                handlers = self._exact.setdefault(route.path, {})
            handlers.setdefault(route.method, route.handler)
            if route.quick is not None:
                self.quick[route.path] = route.quick

    def handler(self, request: HttpRequest) -> HttpHandler:
        """Sets `request.params`."""
        allowed: set[str] = set()
        # An encoded slash is part of a name: proxies that protect a path compare it as it is sent.
        exact = None if "%2F" in request.raw_path.upper() else self._exact.get(request.path)
        if exact is not None:
            if (found := _by_method(exact, request.method)) is not None:
                return found
            allowed |= _methods(exact)
        for pattern, handlers in self._patterns.items():
            if (match := pattern.fullmatch(request.raw_path)) is not None:
                if (found := _by_method(handlers, request.method)) is not None:
                    request.params = {name: decode_path(value) for name, value in match.groupdict().items()}
                    return found
                allowed |= _methods(handlers)
        return _refusing(", ".join(sorted(allowed)))


def _by_method(handlers: dict[str, HttpHandler], method: str) -> HttpHandler | None:
    found = handlers.get(method) or handlers.get(ANY)
    return handlers.get("GET") if found is None and method == "HEAD" else found


def _methods(handlers: dict[str, HttpHandler]) -> set[str]:
    return {*handlers, "HEAD"} if "GET" in handlers else set(handlers)


def _refusing(allowed: str) -> HttpHandler:
    async def refuse(request: HttpRequest) -> HttpAnswer:
        if not allowed:
            return refusal(404, "no such path")
        return refusal(405, f"the path knows {allowed}, not {request.method}", {"Allow": allowed})

    return refuse


def completed(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that does not suspend."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    coroutine.close()
    raise RuntimeError("the coroutine of an instant handler suspended")
