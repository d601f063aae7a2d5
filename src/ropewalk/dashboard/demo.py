"""The demo page: a chat that survives a lost connection, as static files.

The files are read once, at construction. The page can connect to this server only.
"""

from html import escape
from importlib.resources import files

from aiohttp import web
from aiohttp.typedefs import Handler

SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # The files are small and change with the server's version: a browser must not combine files of two versions.
    "Cache-Control": "no-cache",
}

CONTENT_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}

PAGE = "demo.html"
ASSETS = ("demo.css", "demo.js", "cable.js", "messages.js", "publisher.js", "report.js", "icon.svg")


class DemoPage:
    """The routes of `/demo`.

    Args:
        cable_path: the WebSocket endpoint.
        publish_path: the publish endpoint.
        root: whether `/` redirects to the page.
    """

    def __init__(self, cable_path: str = "/cable", publish_path: str = "/api/publish", root: bool = True) -> None:
        self._root = root
        places = {"{{cable_path}}": cable_path, "{{publish_path}}": publish_path}
        self._page = _fill(_read(PAGE), places)
        self._assets = {name: _read(name) for name in ASSETS}

    def routes(self) -> list[web.RouteDef]:
        page = _handler(PAGE, self._page)
        assets = [web.get(f"/demo/{name}", _handler(name, body)) for name, body in self._assets.items()]
        routes = [web.get("/demo", page), web.get("/demo/", page), *assets]
        return [web.get("/", _redirect), *routes] if self._root else routes


async def _redirect(_request: web.Request) -> web.Response:
    return web.Response(status=302, headers={"Location": "/demo", **SECURITY_HEADERS})


def _read(name: str) -> bytes:
    return files("ropewalk.dashboard").joinpath("static", name).read_bytes()


def _fill(template: bytes, places: dict[str, str]) -> bytes:
    text = template.decode()
    for mark, value in places.items():
        text = text.replace(mark, escape(value, quote=True))
    return text.encode()


def _handler(name: str, body: bytes) -> Handler:
    content_type = CONTENT_TYPES[name.rpartition(".")[2]]

    async def handle(_request: web.Request) -> web.Response:
        return web.Response(body=body, content_type=content_type, charset="utf-8", headers=SECURITY_HEADERS)

    return handle
