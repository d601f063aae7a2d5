"""Servers that scenarios share, isolated by stream names. A scenario that stops its server, changes its settings or needs exact
counters starts its own with `running_server`."""

from collections.abc import AsyncIterator, Iterator

import pytest

from ropewalk.client import Publisher
from tests.certificates import TLS_FLAGS
from tests.clients.credentials import SECRET
from tests.scenarios.relay import Relay, relay_to
from tests.scenarios.shared_servers import WORKERS, ServerWith, shared_servers
from tests.server import RunningServer


@pytest.fixture(scope="session")
def server_with() -> Iterator[ServerWith]:
    """Starts one server for each set of flags, with the first test that needs it: `server_with("--public", "--sse")`."""
    with shared_servers() as get:
        yield get


@pytest.fixture(scope="module", params=[(), pytest.param(WORKERS, marks=pytest.mark.tier("all"))], ids=["alone", "workers"])
def worker_flags(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """Flags with which a module runs twice: on a server of one process, and in tier `all` on one with two workers."""
    flags: tuple[str, ...] = request.param
    return flags


@pytest.fixture(scope="module")
def server(server_with: ServerWith) -> RunningServer:
    """With public streams and the default settings. Modules that need other flags override it."""
    return server_with("--public")


@pytest.fixture(scope="module")
def guarded(server_with: ServerWith) -> RunningServer:
    """Lets in clients with a token of `SECRET` only."""
    return server_with("--secret", SECRET, "--enforce_jwt")


@pytest.fixture(scope="module")
def keyed(server_with: ServerWith) -> RunningServer:
    """Publishing needs a key of `SECRET`."""
    return server_with("--secret", SECRET)


@pytest.fixture(scope="module")
def tls_server(server_with: ServerWith) -> RunningServer:
    return server_with("--public", "--sse", *TLS_FLAGS)


@pytest.fixture
async def publisher(server: RunningServer) -> AsyncIterator[Publisher]:
    """To the server of the module, over HTTP."""
    async with Publisher(server.url) as publisher:
        yield publisher


@pytest.fixture
async def relay(server: RunningServer) -> AsyncIterator[Relay]:
    """To the server of the module."""
    async with relay_to(server.port) as relay:
        yield relay
