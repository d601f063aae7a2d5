"""What the client tests share: a script per test, a public server for all of them, and a stream of its own for each test."""

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.clients.script import Script, running_script
from tests.server import RunningServer, running_server


@pytest.fixture
async def anycable() -> AsyncIterator[Script]:
    async with running_script("anycable_core.js") as script:
        yield script


@pytest.fixture
async def rails() -> AsyncIterator[Script]:
    async with running_script("rails_actioncable.js") as script:
        yield script


@pytest.fixture(scope="session")
def public_server() -> Iterator[RunningServer]:
    with running_server("--public", "--history_limit", "10000") as server:
        yield server


@pytest.fixture
def stream(request: pytest.FixtureRequest) -> str:
    return str(request.node.name)
