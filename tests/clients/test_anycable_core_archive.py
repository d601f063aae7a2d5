"""`@anycable/core` requests history older than the hot cache: it gets the archive, then the cache, then live messages."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.archive_writer import archive_journal
from tests.clients.publishers import broadcast, publish
from tests.clients.script import Script, offsets, texts
from tests.server import RunningServer, running_server

pytestmark = pytest.mark.needs_node


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("archive")


@pytest.fixture(scope="module")
def archived_server(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    data = str(tmp_path_factory.mktemp("data"))
    places = ("--data_dir", data, "--archive_dir", str(archive), "--archive_refresh", "0s")
    with running_server("--public", "--history_limit", "10", *places) as server:
        yield server


async def publish_many(server: RunningServer, stream: str, first: int, last: int) -> None:
    for start in range(first, last + 1, 500):
        numbers = range(start, min(start + 500, last + 1))
        await broadcast(server, [{"stream": stream, "data": str(number)} for number in numbers])


async def test_client_that_was_offline_for_long_resumes_from_the_archive(
    anycable: Script, archived_server: RunningServer, stream: str, archive: Path
) -> None:
    alice = await anycable.connect("alice", archived_server.cable)
    await alice.subscribe("chat", stream=stream)
    await publish(archived_server, stream, 1, 2)
    await alice.gets("chat", 2)

    await alice.lose()
    await publish_many(archived_server, stream, 3, 1500)
    await asyncio.to_thread(archive_journal, archived_server, archive)
    await publish_many(archived_server, stream, 1501, 2000)  # most of them only in the journal, ten in the cache
    await alice.come_back()
    await alice.gets("chat", 2000)
    await publish(archived_server, stream, 2001)

    received = await alice.gets("chat", 2001)
    assert offsets(received) == texts(received) == list(range(1, 2002))
    assert alice.frames("reject_history") == []


async def test_history_since_a_time_before_the_hot_cache_comes_from_the_archive(
    anycable: Script, archived_server: RunningServer, stream: str, archive: Path
) -> None:
    await publish_many(archived_server, stream, 1, 600)
    await asyncio.to_thread(archive_journal, archived_server, archive)
    await publish_many(archived_server, stream, 601, 900)

    bob = await anycable.connect("bob", archived_server.cable, since=1)
    await bob.subscribe("chat", stream=stream)
    await bob.gets("chat", 900)
    await publish(archived_server, stream, 901)

    received = await bob.gets("chat", 901)
    assert offsets(received) == texts(received) == list(range(1, 902))
