"""`ropewalk serve`: run the server until it is told to stop."""

import gc
import os
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

from ropewalk.app.settings import Settings, help_text, load, require_startable

if TYPE_CHECKING:
    from ropewalk.app.server import Server

SUMMARY = "run the server"


def run(argv: list[str]) -> int:
    if "-h" in argv or "--help" in argv:
        print(help_text("ropewalk serve [SETTINGS]", SUMMARY))
        return 0
    # From the very beginning: SIGHUP reloads the settings and never ends the process, also while it is still starting.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    import uvloop

    from ropewalk.app import logs
    from ropewalk.app.server import Server

    settings = load(argv, os.environ)
    require_startable(settings)
    logging = settings.logging
    logs.configure(logging.log_level, logging.log_format, payloads=logging.debug)
    _calm_collector()
    environ = dict(os.environ)
    uvloop.run(_serve(settings, lambda: Server(settings, lambda: load(argv, environ))))
    return 0


def _calm_collector() -> None:
    """Sessions are many small objects that live long: walking them again and again finds nothing and stalls everybody.

    What is loaded by now stays for good and is left out; the rest is looked at less often. Reference counts free what
    ordinary work leaves behind. New objects are looked at in small numbers: where they are connections that died in the
    middle of a request, it takes half a microsecond each to free them, and everybody waits for it.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(5_000, 40, 500)


async def _serve(settings: Settings, make_server: "Callable[[], Server]") -> None:
    server = make_server()
    await server.start()
    for address in server.addresses:
        print(f"ropewalk listening on {address}", flush=True)
    if settings.server.demo:
        print(f"open {server.addresses[0]}/demo in two tabs", flush=True)
    await server.wait()
    await server.stop()
