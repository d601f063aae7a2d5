"""Shared by the client tests: one Node process per library, a script per test, a public server, a stream name per test."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.clients.credentials import SECRET
from tests.clients.script import NodeProcess, Script, new_script, node_process
from tests.server import RunningServer, running_server

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One event loop for all tests here, because they share the Node processes."""
    for item in items:
        if HERE in item.path.parents and pytest_asyncio.is_async_test(item):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def anycable_process() -> AsyncIterator[NodeProcess]:
    async with node_process("anycable_core.js") as node:
        yield node


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def rails_process() -> AsyncIterator[NodeProcess]:
    async with node_process("rails_actioncable.js") as node:
        yield node


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def ropewalk_process() -> AsyncIterator[NodeProcess]:
    async with node_process("ropewalk_client.js") as node:
        yield node


@pytest_asyncio.fixture(loop_scope="session")
async def anycable(anycable_process: NodeProcess) -> AsyncIterator[Script]:
    async with new_script(anycable_process) as script:
        yield script


@pytest_asyncio.fixture(loop_scope="session")
async def rails(rails_process: NodeProcess) -> AsyncIterator[Script]:
    async with new_script(rails_process) as script:
        yield script


@pytest_asyncio.fixture(loop_scope="session")
async def ropewalk(ropewalk_process: NodeProcess) -> AsyncIterator[Script]:
    async with new_script(ropewalk_process) as script:
        yield script


@pytest.fixture(scope="session")
def public_server() -> Iterator[RunningServer]:
    with running_server("--public", "--history_limit", "10000") as server:
        yield server


@pytest.fixture(scope="session")
def short_history_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Keeps three messages of a stream. Requests by time for streams named complete/… are rejected if they are trimmed."""
    settings = tmp_path_factory.mktemp("rules") / "ropewalk.toml"
    settings.write_text('[[streams]]\npattern = "complete/*"\nsince_gaps = "reject"\n')
    with running_server("--public", "--history_limit", "3", "--config_path", str(settings)) as server:
        yield server


@pytest.fixture(scope="session")
def guarded_server() -> Iterator[RunningServer]:
    """Wants tokens and signed streams."""
    with running_server("--secret", SECRET, "--turbo_streams") as server:
        yield server


@pytest.fixture
def stream(request: pytest.FixtureRequest) -> str:
    return str(request.node.name)
