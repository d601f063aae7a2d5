"""Bad input costs the sender a clear error and nobody else anything. The answers are those that the reference page promises."""

import re
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from ropewalk.engine.session import RESUMABLE
from ropewalk.model import closing as closings
from ropewalk.model.history import GapReason
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
        assert await CASES[name](server) == documented()[name]
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


def test_the_page_knows_every_reason_for_which_a_connection_ends() -> None:
    rows = re.findall(r"^\| (?:`(\w+)`|–) \| ([\w ]+) \| (\d+) \| ([\w ]+) \| (yes|no) \|", PAGE.read_text(), re.MULTILINE)
    told = {(reason, int(code), text, resumable == "yes") for reason, _, code, text, resumable in rows}
    known = [closing for closing in vars(closings).values() if isinstance(closing, closings.Closing)]
    # What was taken over is kept for whoever took it: the connection that reads of it has a sid that is spent.
    resumable = set(RESUMABLE) - {closings.TAKEN_OVER}
    assert told == {(closing.reason, closing.code, closing.text, closing in resumable) for closing in known}
    for reason, reconnect, _, text, _ in rows:
        wanted = {"yes": True, "no": False}.get(reconnect)
        meant = [closing for closing in known if (closing.reason, closing.text) == (reason, text)]
        assert reason == "remote" or [closing.reconnect for closing in meant] == [wanted]


def test_the_page_knows_every_reason_for_a_gap() -> None:
    section = PAGE.read_text().split("## When history cannot be delivered")[1].split("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)`", section, re.MULTILINE)) == {str(reason) for reason in GapReason}
