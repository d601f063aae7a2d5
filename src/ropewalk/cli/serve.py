"""`ropewalk serve`: runs the server until a signal stops it."""

import asyncio
import gc
import os
import signal
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from ropewalk.app import logs, process_role
from ropewalk.app.control_channel import Supervised
from ropewalk.app.process_role import ProcessKind, Role, own_settings
from ropewalk.app.settings import Settings, SettingsCopy, help_text, load, require_startable, settings_file
from ropewalk.model.errors import UserMistake

if TYPE_CHECKING:
    from ropewalk.app.server import Server

SUMMARY = "run the server"


def run(argv: list[str]) -> int:
    if "-h" in argv or "--help" in argv:
        print(help_text("ropewalk serve [SETTINGS]", SUMMARY))
        return 0
    # SIGHUP reloads the settings and must not end the process, also during its start.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    role = process_role.taken_from(os.environ)
    return _run_alone_or_supervise(argv) if role.kind is ProcessKind.ALONE else _run_supervised(argv, role)


def _run_alone_or_supervise(argv: list[str]) -> int:
    settings = _settings(argv)
    environ = dict(os.environ)

    def reload() -> Settings:
        return load(argv, environ)

    if settings.server.workers > 1:
        from ropewalk.app.supervisor import Supervisor

        find, read = partial(settings_file, argv, environ), partial(load, argv, environ, None)
        asyncio.run(Supervisor(settings, find, read, partial(_announce, settings)).run())
        return 0
    import uvloop

    from ropewalk.app.server import Server

    _tune_collector()
    uvloop.run(_serve(settings, lambda: Server(settings, reload)))
    return 0


def _settings(argv: list[str], copy: SettingsCopy | None = None) -> Settings:
    """Load and check the settings, and configure logging."""
    settings = load(argv, os.environ, instead=copy)
    require_startable(settings)
    logging = settings.logging
    logs.configure(logging.log_level, logging.log_format, payloads=logging.debug)
    return settings


def _run_supervised(argv: list[str], role: Role) -> int:
    """Run as a child of a supervisor, which reports mistakes."""
    if role.kind is ProcessKind.STORE:
        for number in (signal.SIGINT, signal.SIGTERM):  # it ends after the workers, also if all processes get the signal
            signal.signal(number, signal.SIG_IGN)
    import uvloop

    from ropewalk.app.server import Server

    supervised = Supervised(role)
    try:
        logs.name_process(role.name)
        whole = _settings(argv, role.settings_copy)
        settings = own_settings(role, whole)
        environ = dict(os.environ)

        def reload() -> Settings:
            return own_settings(role, load(argv, environ, instead=role.settings_copy))

        _tune_collector()
        uvloop.run(_serve_supervised(supervised, lambda: Server(settings, reload, role, whole)))
    except UserMistake as mistake:
        supervised.failed(str(mistake))
        return 1
    finally:
        supervised.detach()
    return 0


def _tune_collector() -> None:
    """Sessions are many small, long-lived objects: full collections find no garbage in them and stall the event loop.

    Objects that are loaded by now are excluded, and full collections are rarer. Reference counting frees most objects anyway.
    The two younger generations are collected in small numbers, because such a collection takes some 0.15 microseconds for each
    object: with 200,000 in the middle one, a client with many subscriptions stalled the loop for 30 ms.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(5_000, 4, 5_000)


async def _serve(settings: Settings, make_server: "Callable[[], Server]") -> None:
    server = make_server()
    await server.start()
    _announce(settings, server.addresses)
    await server.wait()
    await server.stop()


async def _serve_supervised(supervised: Supervised, make_server: "Callable[[], Server]") -> None:
    server = make_server()
    supervised.attach(server)
    await server.start()
    supervised.ready()
    await server.wait()
    await server.stop()


def _announce(settings: Settings, addresses: list[str]) -> None:
    # In one write, so that a program that waits for the first line can read the others too.
    print("\n".join(f"ropewalk listening on {address}" for address in addresses), flush=True)
    if settings.server.demo:
        print(f"open {addresses[0]}/demo in two tabs", flush=True)
