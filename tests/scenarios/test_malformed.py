"""Malformed input gets the answers of docs/reference/errors.md, and other clients are not affected."""

import asyncio
import re
from pathlib import Path

import aiohttp
import pytest

from ropewalk.engine.session import RESUMABLE
from ropewalk.model import closing as closings
from ropewalk.model.history import GapReason
from tests.broky_client import new_key
from tests.cable import cable
from tests.scenarios.malformed import STREAM, Case
from tests.scenarios.malformed_frames import COMMANDS, FRAMES, MESSAGES
from tests.scenarios.malformed_requests import CONNECTIONS, PUBLISHING, READING
from tests.scenarios.shared_servers import ServerWith
from tests.server import RunningServer, publish

GROUPS: dict[str, dict[str, Case]] = {
    "connections": CONNECTIONS,
    "frames": FRAMES,
    "messages": MESSAGES,
    "commands": COMMANDS,
    "publishing": PUBLISHING,
    "reading": READING,
}
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "errors.md"


def documented() -> dict[str, str]:
    """Case and answer, from the rows `| \\`case\\` | what is sent | \\`answer\\` | … |` of the page."""
    rows = re.findall(r"^\| `([\w-]+)` \| .+? \| `([^`]+)` \|", PAGE.read_text(), re.MULTILINE)
    return dict(rows)


@pytest.fixture(scope="module")
def server(server_with: ServerWith) -> RunningServer:
    return server_with("--public", "--sse")


def test_page_and_cases_are_the_same_set() -> None:
    assert sorted(documented()) == sorted(name for group in GROUPS.values() for name in group)


@pytest.mark.parametrize("group", GROUPS)
async def test_malformed_input_gets_its_documented_answer_and_does_not_affect_other_clients(
    group: str, server: RunningServer
) -> None:
    expected, cases, stream = documented(), GROUPS[group], new_key().decode()
    async with cable(server) as neighbour:
        await neighbour.subscribe(stream)
        answers = await asyncio.gather(*(case(server) for case in cases.values()), return_exceptions=True)
        found = dict(zip(cases, answers, strict=True))
        assert not {name: (answer, expected[name]) for name, answer in found.items() if answer != expected[name]}
        await publish(server, stream, "still here")
        assert await neighbour.messages(1) == ["still here"]
        await neighbour.quiet()
    async with aiohttp.ClientSession() as http, http.get(f"{server.url}/api/streams?limit=1000") as response:
        assert STREAM not in [found["stream"] for found in (await response.json())["streams"]]


async def test_refused_batch_names_the_index_of_the_invalid_publication(server: RunningServer) -> None:
    good = {"stream": STREAM, "data": "1"}
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{server.url}/_broadcast", json=[good, good, {"stream": ""}]) as response,
    ):
        assert response.status == 422
        assert (await response.json())["index"] == 2


def test_page_has_every_close_reason() -> None:
    rows = re.findall(r"^\| (?:`(\w+)`|–) \| ([\w ]+) \| (\d+) \| ([\w ]+) \| (yes|no) \|", PAGE.read_text(), re.MULTILINE)
    listed = {(reason, int(code), text, resumable == "yes") for reason, _, code, text, resumable in rows}
    known = [closing for closing in vars(closings).values() if isinstance(closing, closings.Closing)]
    # A session that was taken over belongs to the connection that took it, so the closed one cannot resume it.
    resumable = set(RESUMABLE) - {closings.TAKEN_OVER}
    assert listed == {(closing.reason, closing.code, closing.text, closing in resumable) for closing in known}
    for reason, reconnect, _, text, _ in rows:
        wanted = {"yes": True, "no": False}.get(reconnect)
        meant = [closing for closing in known if (closing.reason, closing.text) == (reason, text)]
        assert reason == "remote" or [closing.reconnect for closing in meant] == [wanted]


def test_page_has_every_gap_reason() -> None:
    section = PAGE.read_text().split("## When history cannot be delivered")[1].split("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)`", section, re.MULTILINE)) == {str(reason) for reason in GapReason}
