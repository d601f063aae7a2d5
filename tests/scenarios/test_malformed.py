"""Bad input costs the sender a clear error and nobody else anything. The answers are those that the reference page promises."""

import re
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from tests.cable import cable
from tests.scenarios.malformed import STREAM, Case
from tests.scenarios.malformed_frames import COMMANDS, FRAMES, MESSAGES
from tests.scenarios.malformed_requests import CONNECTIONS, PUBLISHING, READING
from tests.server import RunningServer, publish, running_server

CASES: dict[str, Case] = {**CONNECTIONS, **FRAMES, **MESSAGES, **COMMANDS, **PUBLISHING, **READING}
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "errors.md"


def documented() -> dict[str, str]:
    """Case and answer, from the rows `| \\`case\\` | what is sent | \\`answer\\` | … |` of the page."""
    rows = re.findall(r"^\| `([\w-]+)` \| .+? \| `([^`]+)` \|", PAGE.read_text(), re.MULTILINE)
    return dict(rows)


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server("--public", "--sse") as running:
        yield running
        assert "Traceback" not in running.log(), running.log()


def test_the_page_and_the_cases_are_the_same_set() -> None:
    assert sorted(documented()) == sorted(CASES)


@pytest.mark.parametrize("name", CASES)
async def test_malformed_input_gets_its_documented_answer_and_a_neighbour_notices_nothing(
    name: str, server: RunningServer
) -> None:
    async with cable(server) as neighbour:
        await neighbour.subscribe("malformed/neighbour")
        assert await CASES[name](server) == documented().get(name)
        await publish(server, "malformed/neighbour", name)
        assert await neighbour.messages(1) == [name]
        await neighbour.quiet()


async def test_what_is_refused_registers_nothing(server: RunningServer) -> None:
    for refused in PUBLISHING.values():
        await refused(server)
    async with aiohttp.ClientSession() as http, http.get(f"{server.url}/api/streams?limit=1000") as response:
        assert STREAM not in [stream["stream"] for stream in (await response.json())["streams"]]


async def test_a_refused_batch_says_which_publication_is_to_blame(server: RunningServer) -> None:
    good = {"stream": STREAM, "data": "1"}
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{server.url}/_broadcast", json=[good, good, {"stream": ""}]) as response,
    ):
        assert response.status == 422
        assert (await response.json())["index"] == 2
