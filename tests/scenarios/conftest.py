"""Servers that scenarios share. A scenario isolates itself by stream names; one that stops its server, changes it or counts all
that it does starts its own with `running_server`."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.certificates import tls_flags
from tests.server import RunningServer, running_server

ServerWith = Callable[..., RunningServer]
"""Returns the server with these flags: `server_with("--public", "--history_limit", "5")`."""

WORKERS = ("--workers", "2")


@pytest.fixture(scope="session")
def server_with() -> Iterator[ServerWith]:
    """Starts a server for each set of flags once and stops all of them at the end. None may have logged a traceback."""
    servers: dict[tuple[str, ...], RunningServer] = {}
    with ExitStack() as stack:

        def get(*flags: str) -> RunningServer:
            if flags not in servers:
                servers[flags] = stack.enter_context(running_server(*flags))
            assert servers[flags].process.poll() is None, f"the server with {flags} ended:\n{servers[flags].log()}"
            return servers[flags]

        yield get
        failed = [f"{flags}:\n{server.log()}" for flags, server in servers.items() if "Traceback" in server.log()]
    assert not failed, "\n".join(failed)


@pytest.fixture(scope="module", params=[(), pytest.param(WORKERS, marks=pytest.mark.tier("all"))], ids=["alone", "workers"])
def worker_flags(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """Runs a module with servers of one process, and in tier `all` with servers of several: clients must not notice it."""
    flags: tuple[str, ...] = request.param
    return flags


@pytest.fixture(scope="module")
def server(server_with: ServerWith) -> RunningServer:
    """With public streams and the default settings. Modules that need other flags override it."""
    return server_with("--public")


@pytest.fixture(scope="module")
def tls_server(server_with: ServerWith) -> RunningServer:
    """With public streams, event streams and TLS."""
    return server_with("--public", "--sse", *tls_flags())
