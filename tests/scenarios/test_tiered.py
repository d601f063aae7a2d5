"""History beyond the hot cache, from the journal and the archive: cold, then hot, then live."""

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest
from deltalake import DeltaTable

from ropewalk.client import Message, Position
from ropewalk.core.ring import locate_shard
from ropewalk.pipeline.archive import compact
from tests.archive_writer import archive_journal, flip_payload
from tests.cable import TIMEOUT, Frame, cable, identifier
from tests.scenarios.command_line import run_ropewalk
from tests.scenarios.python_clients import CABLE
from tests.server import RunningServer, running_server

HOT = 10
STREAMS = ("chat/1", "chat/2", "news")


class Place(NamedTuple):
    server: RunningServer
    archive: Path

    async def publish(self, stream: str, first: int, last: int, **more: str) -> None:
        async with aiohttp.ClientSession() as http:
            for start in range(first, last + 1, 500):
                drafts = [{"stream": stream, "data": str(n), **more} for n in range(start, min(start + 500, last + 1))]
                async with http.post(f"{self.server.url}/api/publish", json=drafts) as answer:
                    assert answer.status == 201, await answer.text()

    async def archive_all(self) -> None:
        await asyncio.to_thread(archive_journal, self.server, self.archive)

    async def pages(self, stream: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        async with aiohttp.ClientSession() as http:
            after: int | None = 0
            while after is not None:
                query = {"after": str(after), "limit": "700"}
                async with http.get(f"{self.server.url}/api/streams/{stream}/history", params=query) as answer:
                    found.append(await answer.json())
                after = found[-1]["next"]
        return found


def flags(home: Path, *more: str) -> tuple[str, ...]:
    places = ("--data_dir", str(home / "data"), "--archive_dir", str(home / "archive"), "--archive_refresh", "0s")
    return ("--public", "--sse", "--history_limit", str(HOT), *places, *more)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    home = tmp_path_factory.mktemp("place")
    with running_server(*flags(home)) as server:
        yield Place(server, home / "archive")


@pytest.fixture(scope="module")
def any_place(
    worker_flags: tuple[str, ...], request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    """With one process, and in tier all with several."""
    if not worker_flags:
        yield request.getfixturevalue("place")
        return
    home = tmp_path_factory.mktemp("place")
    with running_server(*flags(home, *worker_flags)) as server:
        yield Place(server, home / "archive")


@pytest.fixture(scope="module")
def bounded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """With answers of at most 100 cold messages."""
    home = tmp_path_factory.mktemp("place")
    with running_server(*flags(home, "--archive_replay_limit", "100")) as server:
        yield Place(server, home / "archive")


def from_the_beginning(stream: str) -> Frame:
    return {"streams": {stream: {"epoch": "", "offset": 0}}}


def offsets(messages: list[Frame]) -> list[int]:
    return [message["offset"] for message in messages]


def exactly(messages: list[Frame], first: int, last: int) -> bool:
    """Each once, in order, and with its own data."""
    return [(each["offset"], each["message"]) for each in messages] == [(n, n) for n in range(first, last + 1)]


async def test_client_gets_cold_then_hot_then_live_messages(any_place: Place) -> None:
    for stream in STREAMS:
        await any_place.publish(stream, 1, 1500)
    await any_place.archive_all()
    for stream in STREAMS:
        async with cable(any_place.server) as client:
            history = await client.subscribe(stream, history=from_the_beginning(stream))
            assert exactly(history, 1, 1500)
            again = {"streams": {stream: {"epoch": history[0]["epoch"], "offset": 42}}}
            async with cable(any_place.server) as other:
                assert exactly(await other.subscribe(stream, history=again), 43, 1500)
            await any_place.publish(stream, 1501, 1502)
            assert await client.messages(2) == [1501, 1502]


async def test_messages_that_are_not_archived_come_from_the_journal(place: Place) -> None:
    await place.publish("journal", 1, 300)
    async with cable(place.server) as client:
        assert exactly(await client.subscribe("journal", history=from_the_beginning("journal")), 1, 300)
    await place.archive_all()
    await place.publish("journal", 301, 600)

    async with cable(place.server) as client:
        assert exactly(await client.subscribe("journal", history={"since": 1}), 1, 600)


async def test_messages_deleted_from_the_archive_come_from_the_journal(worker_flags: tuple[str, ...], tmp_path: Path) -> None:
    with running_server(*flags(tmp_path, *worker_flags)) as server:
        place = Place(server, tmp_path / "archive")
        await place.publish("chat", 1, 400)
        await place.archive_all()
        DeltaTable(place.archive).delete('"offset" = 1 OR ("offset" > 100 AND "offset" <= 110)')

        for wanted in (from_the_beginning("chat"), {"since": 1}):
            async with cable(server) as client:
                assert exactly(await client.subscribe("chat", history=wanted), 1, 400), wanted


async def test_history_is_complete_after_a_restart_with_another_number_of_shards(tmp_path: Path) -> None:
    """Of streams with a partition key, which share its shard, and of others."""
    keyed, others = [f"keyed/{stream}" for stream in STREAMS], [f"other/{stream}" for stream in STREAMS]
    with running_server(*flags(tmp_path, "--journal_shards", "3")) as server:
        place = Place(server, tmp_path / "archive")
        for stream in keyed:
            await place.publish(stream, 1, 100, partition_key="room")
        for stream in others:
            await place.publish(stream, 1, 50)
        await place.archive_all()
        for stream in keyed:
            await place.publish(stream, 101, 200)
        for stream in others:
            await place.publish(stream, 51, 100)
    with running_server(*flags(tmp_path, "--journal_shards", "8")) as server:
        async with aiohttp.ClientSession() as http:
            async with http.get(f"{server.url}/journal") as answer:
                spans = (await answer.json())["spans"]
            changed = {"stream": keyed[0], "data": "1", "partition_key": "elsewhere"}
            async with http.post(f"{server.url}/api/publish", json=changed) as answer:
                assert answer.status == 409
                assert "partition key 'room'" in (await answer.json())["error"]
        assert len(spans) == 3
        assert len([span for span in spans if span["end"] >= 600]) == 1  # the shard of the key
        for stream, last in (*((stream, 200) for stream in keyed), *((stream, 100) for stream in others)):
            async with cable(server) as client:
                assert exactly(await client.subscribe(stream, history=from_the_beginning(stream)), 1, last), stream


async def test_clients_that_subscribe_while_the_archive_grows_miss_nothing(any_place: Place) -> None:
    await any_place.publish("growing", 1, 200)
    last = 200

    async def go_on() -> None:
        nonlocal last
        for start in range(201, 1201, 10):
            await any_place.publish("growing", start, start + 9)
            last = start + 9
            if start % 200 == 1:
                await any_place.archive_all()
                await asyncio.to_thread(compact, str(any_place.archive))

    async def read_all() -> None:
        async with cable(any_place.server) as client:
            history = await client.subscribe("growing", history=from_the_beginning("growing"))
            live = await client.messages_up_to(1200) if history[-1]["offset"] < 1200 else []
            assert exactly(history + live, 1, 1200)

    publishing = asyncio.create_task(go_on())
    readers = []
    for moment in range(201, 1000, 100):
        while last < moment and not publishing.done():
            await asyncio.sleep(0.005)
        readers.append(asyncio.create_task(read_all()))
    await asyncio.gather(publishing, *readers)


async def test_pages_reach_back_to_the_first_message(place: Place) -> None:
    await place.publish("pages", 1, 1500)
    await place.archive_all()
    await place.publish("pages", 1501, 2000)

    pages = await place.pages("pages")

    assert [message["message"] for page in pages for message in page["messages"]] == list(range(1, 2001))
    assert {page["oldest"] for page in pages} == {1}


async def test_tail_reads_a_stream_from_its_beginning_in_bounded_answers(bounded: Place) -> None:
    await bounded.publish("tail", 1, 800)
    await bounded.archive_all()
    await bounded.publish("tail", 801, 1000)

    result = run_ropewalk("tail", "tail", "--from", "1", "--count", "1000", "--json", "--url", bounded.server.url)

    assert [json.loads(line)["data"] for line in result.stdout.splitlines()] == list(range(1, 1001))
    assert result.stderr == ""


async def test_python_client_reads_bounded_answers_and_live_messages_in_order(bounded: Place) -> None:
    await bounded.publish("client", 1, 500)
    await bounded.archive_all()
    async with CABLE.client(bounded.server) as client:
        stream = await client.subscribe("client", position=Position("", 0))
        publishing = asyncio.create_task(bounded.publish("client", 501, 1000))
        seen = []
        async for event in stream:
            assert isinstance(event, Message), event
            seen.append((event.offset, event.data))
            if event.offset == 1000:
                break
        await publishing

    assert seen == [(n, n) for n in range(1, 1001)]


@pytest.mark.tier("all")
async def test_cold_and_hot_history_join_after_a_crash(tmp_path: Path, worker_flags: tuple[str, ...]) -> None:
    with running_server(*flags(tmp_path, *worker_flags)) as server:
        place = Place(server, tmp_path / "archive")
        await place.publish("a", 1, 400)
        await place.archive_all()
        await place.publish("a", 401, 500)
        server.kill()
    with running_server(*flags(tmp_path, *worker_flags)) as server:
        place = Place(server, tmp_path / "archive")
        await place.publish("a", 501, 520)
        async with cable(server) as client:
            assert exactly(await client.subscribe("a", history=from_the_beginning("a")), 1, 520)


async def test_damaged_file_of_the_archive_is_a_gap(tmp_path: Path) -> None:
    """A file that is empty, cut short or changed, each of another shard."""
    streams = {locate_shard(stream, 8): stream for stream in map(str, range(100))}
    damages = ("empty", "cut short", "changed")
    with running_server(*flags(tmp_path, "--journal_shards", "8")) as server:
        place = Place(server, tmp_path / "archive")
        for shard in range(len(damages)):
            await place.publish(streams[shard], 1, 200)
        await place.archive_all()
        for shard, damage in enumerate(damages):
            [path] = place.archive.rglob(f"shard={shard:02}/*.parquet")
            if damage == "changed":
                flip_payload(path)
            else:
                os.truncate(path, 0 if damage == "empty" else path.stat().st_size - 100)
            await check_gap(place, streams[shard])
            assert server.log().count(path.name) == 1, damage


async def check_gap(place: Place, stream: str) -> None:
    """The client gets the hot messages and live ones, and a gap before them."""
    [page] = await place.pages(stream)
    async with cable(place.server) as client:
        position = {"epoch": page["epoch"], "offset": 5}
        await client.send(command="subscribe", identifier=identifier(stream), history={"streams": {stream: position}})
        await client.expect("confirm_subscription")
        gap = await client.expect("reject_history", reason="trimmed")
        hot = await client.messages(HOT)
        await place.publish(stream, 201, 202)
        live = await client.messages(2)
    async with aiohttp.ClientSession() as http:
        query = {"stream": stream, "history_since": "1"}
        async with http.get(f"{place.server.url}/events", params=query) as answer:
            assert answer.status == 200
            await asyncio.wait_for(answer.content.readuntil(b'"reason":"trimmed"'), TIMEOUT)

    assert (page["oldest"], offsets(page["messages"])) == (191, list(range(191, 201)))
    assert (gap["streams"][stream]["oldest"], [*hot, *live]) == (191, list(range(191, 203)))


async def test_archive_without_a_journal_is_refused(tmp_path: Path) -> None:
    result = run_ropewalk("serve", "--public", "--port", "0", "--archive_dir", str(tmp_path))

    assert result.returncode != 0
    assert "--data_dir" in result.stderr
