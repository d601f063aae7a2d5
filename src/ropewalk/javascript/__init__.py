"""The JavaScript client: one file, which servers serve as `/ropewalk.js` and npm gets as `@ropewalk/client`."""

from hashlib import sha256
from importlib.resources import files

PATH = "/ropewalk.js"


def client_script() -> tuple[bytes, dict[str, str]]:
    """The file and its headers. Pages of any origin may import it."""
    script = files(__name__).joinpath("ropewalk.js").read_bytes()
    headers = {
        "Content-Type": "text/javascript; charset=utf-8",
        "Cache-Control": "public, max-age=3600",
        "ETag": f'"{sha256(script).hexdigest()[:16]}"',
        "Access-Control-Allow-Origin": "*",
        "Cross-Origin-Resource-Policy": "cross-origin",
        "X-Content-Type-Options": "nosniff",
    }
    return script, headers
