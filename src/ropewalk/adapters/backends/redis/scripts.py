"""The Lua scripts of the Redis backend. Each is one atomic step of the server.

Those of streams, sessions and members begin alike, by `common.lua`, and are called alike: the first three arguments are always
the run of the server that the caller knows, the time that tests set (0 otherwise) and the command that reaches subscribers.
"""

from functools import cache
from hashlib import sha1
from importlib.resources import files

from msgspec import Struct


class Script(Struct, frozen=True):
    """A script's text, and the name under which a server that has it runs it."""

    text: str
    digest: str


PRELUDES = {
    "sessions": ("common", "owners", "records"),
    "leases": ("common", "owners", "records"),
    "presence": ("common", "owners"),
    "ring_renew": (),
    "ring_record": (),
}
"""What stands before a script; before all others it is `common`."""


@cache
def script(name: str) -> Script:
    folder = files(__package__) / "lua"
    text = "\n".join((folder / f"{part}.lua").read_text("utf-8") for part in (*PRELUDES.get(name, ("common",)), name))
    return Script(text, sha1(text.encode(), usedforsecurity=False).hexdigest())
