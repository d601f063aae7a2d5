"""`@anycable/core` asks for history that is older than the hot cache: it comes from the archive, then hot, then live."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.archive_writer import archive_journal
from tests.clients.publishers import broadcast, publish
from tests.clients.script import Script, offsets, texts
from tests.server import RunningServer, running_server

pytestmark = pytest.mark.needs_node


@pytest.fixture
def archived_server(tmp_path: Path) -> Iterator[RunningServer]:
    places = ("--data_dir", str(tmp_path / "data"), "--archive_dir", str(tmp_path / "archive"), "--archive_refresh", "0s")
    with running_server("--public", "--history_limit", "10", *places) as server:
        yield server


async def publish_many(server: RunningServer, stream: str, first: int, last: int) -> None:
    for start in range(first, last + 1, 500):
        numbers = range(start, min(start + 500, last + 1))
        await broadcast(server, [{"stream": stream, "data": str(number)} for number in numbers])


async def test_a_client_that_was_away_for_long_resumes_from_the_archive(
    anycable: Script, archived_server: RunningServer, stream: str, tmp_path: Path
) -> None:
    alice = await anycable.connect("alice", archived_server.cable)
    await alice.subscribe("chat", stream=stream)
    await publish(archived_server, stream, 1, 2)
    await alice.gets("chat", 2)

    await alice.lose()
    await publish_many(archived_server, stream, 3, 1500)
    await asyncio.to_thread(archive_journal, archived_server, tmp_path / "archive")
    await publish_many(archived_server, stream, 1501, 2000)  # a part that only the journal has, and ten that are hot
    await alice.come_back()
    await alice.gets("chat", 2000)
    await publish(archived_server, stream, 2001)

    received = await alice.gets("chat", 2001)
    assert offsets(received) == texts(received) == list(range(1, 2002))
    assert alice.frames("reject_history") == []


async def test_a_new_client_gets_what_came_since_a_time_before_the_hot_cache(
    anycable: Script, archived_server: RunningServer, stream: str, tmp_path: Path
) -> None:
    await publish_many(archived_server, stream, 1, 600)
    await asyncio.to_thread(archive_journal, archived_server, tmp_path / "archive")
    await publish_many(archived_server, stream, 601, 900)

    bob = await anycable.connect("bob", archived_server.cable, since=1)
    await bob.subscribe("chat", stream=stream)
    await bob.gets("chat", 900)
    await publish(archived_server, stream, 901)

    received = await bob.gets("chat", 901)
    assert offsets(received) == texts(received) == list(range(1, 902))
