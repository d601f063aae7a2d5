"""The demo page: a chat that survives a lost connection, as static files.

The files are read once, at construction. The page can connect to this server only.
"""

from html import escape
from importlib.resources import files

from msgspec import Struct

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
ASSETS = ("demo.css", "demo.js", "messages.js", "publisher.js", "report.js", "icon.svg")


class StaticPage(Struct, frozen=True):
    """A response that is always the same."""

    status: int
    body: bytes
    headers: dict[str, str]


class DemoPage:
    """The pages of `/demo`.

    Args:
        cable_path: where the WebSocket is.
        publish_path: where the publish endpoint is.
        root: `/` redirects to the page.
    """

    def __init__(self, cable_path: str = "/cable", publish_path: str = "/api/publish", root: bool = True) -> None:
        self._root = root
        places = {"{{cable_path}}": cable_path, "{{publish_path}}": publish_path}
        self._page = _fill(_read(PAGE), places)
        self._assets = {name: _read(name) for name in ASSETS}

    def pages(self) -> dict[str, StaticPage]:
        """By path."""
        demo = _page(PAGE, self._page)
        pages = {"/demo": demo, "/demo/": demo, **{f"/demo/{name}": _page(name, body) for name, body in self._assets.items()}}
        return {"/": StaticPage(302, b"", {"Location": "/demo", **SECURITY_HEADERS}), **pages} if self._root else pages


def _read(name: str) -> bytes:
    return files("ropewalk.dashboard").joinpath("static", name).read_bytes()


def _fill(template: bytes, places: dict[str, str]) -> bytes:
    text = template.decode()
    for mark, value in places.items():
        text = text.replace(mark, escape(value, quote=True))
    return text.encode()


def _page(name: str, body: bytes) -> StaticPage:
    content_type = CONTENT_TYPES[name.rpartition(".")[2]]
    return StaticPage(200, body, {"Content-Type": f"{content_type}; charset=utf-8", **SECURITY_HEADERS})
