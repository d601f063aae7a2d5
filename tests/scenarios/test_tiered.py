"""History older than the hot cache, from a real server with a journal and an archive: cold, then hot, then live."""

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest

from ropewalk.client import Message, Position, connect
from ropewalk.pipeline.archive import compact
from tests.archive_writer import archive_journal, flip_payload
from tests.cable import TIMEOUT, Frame, cable, identifier
from tests.scenarios.command_line import run_ropewalk
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


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with running_server(*flags(tmp_path)) as server:
        yield Place(server, tmp_path / "archive")


def offsets(messages: list[Frame]) -> list[int]:
    return [message["offset"] for message in messages]


def exactly(messages: list[Frame], first: int, last: int) -> bool:
    """Each once, in order, and at each place what was published there."""
    return [(each["offset"], each["message"]) for each in messages] == [(n, n) for n in range(first, last + 1)]


@pytest.mark.usefixtures("processes")
async def test_a_client_gets_cold_history_then_hot_then_live(place: Place) -> None:
    for stream in STREAMS:
        await place.publish(stream, 1, 1500)
    await place.archive_all()
    for stream in STREAMS:
        async with cable(place.server) as client:
            history = await client.subscribe(stream, history={"streams": {stream: {"epoch": "", "offset": 0}}})
            assert exactly(history, 1, 1500)
            again = {"streams": {stream: {"epoch": history[0]["epoch"], "offset": 42}}}
            async with cable(place.server) as other:
                assert exactly(await other.subscribe(stream, history=again), 43, 1500)
            await place.publish(stream, 1501, 1502)
            assert await client.messages(2) == [1501, 1502]


async def test_what_is_not_archived_yet_comes_from_the_journal(place: Place) -> None:
    await place.publish("a", 1, 300)
    async with cable(place.server) as client:
        assert exactly(await client.subscribe("a", history={"streams": {"a": {"epoch": "", "offset": 0}}}), 1, 300)
    await place.archive_all()
    await place.publish("a", 301, 600)

    async with cable(place.server) as client:
        assert exactly(await client.subscribe("a", history={"since": 1}), 1, 600)


async def test_streams_with_a_partition_key_are_found_in_its_shard_also_after_a_restart(tmp_path: Path) -> None:
    with running_server(*flags(tmp_path, "--journal_shards", "8")) as server:
        place = Place(server, tmp_path / "archive")
        for stream in STREAMS:
            await place.publish(stream, 1, 100, partition_key="room")
        await place.archive_all()
        for stream in STREAMS:
            await place.publish(stream, 101, 200)
    with running_server(*flags(tmp_path)) as server:
        async with aiohttp.ClientSession() as http:
            async with http.get(f"{server.url}/journal") as answer:
                written = [span["shard"] for span in (await answer.json())["spans"] if span["end"] >= 600]
            changed = {"stream": "news", "data": "1", "partition_key": "elsewhere"}
            async with http.post(f"{server.url}/api/publish", json=changed) as answer:
                assert answer.status == 409
                assert "partition key 'room'" in (await answer.json())["error"]
        assert len(written) == 1
        for stream in STREAMS:
            async with cable(server) as client:
                history = await client.subscribe(stream, history={"streams": {stream: {"epoch": "", "offset": 0}}})
                assert exactly(history, 1, 200)


async def test_a_journal_with_another_number_of_shards_than_the_setting_says_is_read_in_its_own(tmp_path: Path) -> None:
    with running_server(*flags(tmp_path, "--journal_shards", "3")) as server:
        place = Place(server, tmp_path / "archive")
        for stream in STREAMS:
            await place.publish(stream, 1, 100)
        await place.archive_all()
        for stream in STREAMS:
            await place.publish(stream, 101, 200)
    with running_server(*flags(tmp_path, "--journal_shards", "8")) as server:
        for stream in STREAMS:
            async with cable(server) as client:
                history = await client.subscribe(stream, history={"streams": {stream: {"epoch": "", "offset": 0}}})
                assert exactly(history, 1, 200)


@pytest.mark.usefixtures("processes")
async def test_clients_that_come_while_others_publish_and_the_archive_grows_miss_nothing(place: Place) -> None:
    await place.publish("a", 1, 200)
    last = 200

    async def go_on() -> None:
        nonlocal last
        for start in range(201, 1201, 10):
            await place.publish("a", start, start + 9)
            last = start + 9
            if start % 200 == 1:
                await place.archive_all()
                await asyncio.to_thread(compact, str(place.archive))

    async def read_all() -> None:
        async with cable(place.server) as client:
            history = await client.subscribe("a", history={"streams": {"a": {"epoch": "", "offset": 0}}})
            live = await client.messages_up_to(1200) if history[-1]["offset"] < 1200 else []
            assert exactly(history + live, 1, 1200)

    publishing = asyncio.create_task(go_on())
    readers = []
    for moment in range(201, 1000, 100):
        while last < moment and not publishing.done():
            await asyncio.sleep(0.005)
        readers.append(asyncio.create_task(read_all()))
    await asyncio.gather(publishing, *readers)


async def test_pages_reach_back_to_the_beginning_of_time(place: Place) -> None:
    await place.publish("a", 1, 1500)
    await place.archive_all()
    await place.publish("a", 1501, 2000)

    pages = await place.pages("a")

    assert [message["message"] for page in pages for message in page["messages"]] == list(range(1, 2001))
    assert {page["oldest"] for page in pages} == {1}


async def test_tail_reads_a_stream_from_its_beginning_in_many_bounded_answers(tmp_path: Path) -> None:
    with running_server(*flags(tmp_path, "--archive_replay_limit", "300")) as server:
        place = Place(server, tmp_path / "archive")
        await place.publish("a", 1, 2000)
        await place.archive_all()
        await place.publish("a", 2001, 2500)

        result = run_ropewalk("tail", "a", "--from", "1", "--count", "2500", "--json", "--url", server.url)

        assert [json.loads(line)["data"] for line in result.stdout.splitlines()] == list(range(1, 2501))
        assert result.stderr == ""


async def test_the_sdk_reads_bounded_answers_and_live_messages_in_order(tmp_path: Path) -> None:
    with running_server(*flags(tmp_path, "--archive_replay_limit", "50")) as server:
        place = Place(server, tmp_path / "archive")
        await place.publish("a", 1, 500)
        await place.archive_all()
        async with connect(server.url) as client:
            stream = await client.subscribe("a", position=Position("", 0))
            publishing = asyncio.create_task(place.publish("a", 501, 1000))
            seen = []
            async for event in stream:
                assert isinstance(event, Message), event
                seen.append((event.offset, event.data))
                if event.offset == 1000:
                    break
            await publishing

        assert seen == [(n, n) for n in range(1, 1001)]


@pytest.mark.usefixtures("processes")
async def test_after_a_crash_cold_and_hot_history_still_join_up(tmp_path: Path) -> None:
    with running_server(*flags(tmp_path)) as server:
        place = Place(server, tmp_path / "archive")
        await place.publish("a", 1, 400)
        await place.archive_all()
        await place.publish("a", 401, 500)
        server.kill()
    with running_server(*flags(tmp_path)) as server:
        place = Place(server, tmp_path / "archive")
        await place.publish("a", 501, 520)
        async with cable(server) as client:
            assert exactly(await client.subscribe("a", history={"streams": {"a": {"epoch": "", "offset": 0}}}), 1, 520)


@pytest.mark.parametrize("damage", ["empty", "cut short", "changed"])
async def test_a_damaged_file_of_the_archive_is_a_gap_for_everybody_and_the_rest_goes_on(place: Place, damage: str) -> None:
    await place.publish("a", 1, 200)
    await place.archive_all()
    [path] = place.archive.rglob("*.parquet")
    if damage == "changed":
        flip_payload(path)
    else:
        os.truncate(path, 0 if damage == "empty" else path.stat().st_size - 100)

    [page] = await place.pages("a")
    async with cable(place.server) as client:
        await client.send(
            command="subscribe", identifier=identifier("a"), history={"streams": {"a": {"epoch": page["epoch"], "offset": 5}}}
        )
        await client.expect("confirm_subscription")
        gap = await client.expect("reject_history", reason="trimmed")
        hot = await client.messages(HOT)
        await place.publish("a", 201, 202)
        live = await client.messages(2)
    async with aiohttp.ClientSession() as http:
        query = {"stream": "a", "history_since": "1"}
        async with http.get(f"{place.server.url}/events", params=query) as answer:
            assert answer.status == 200
            await asyncio.wait_for(answer.content.readuntil(b'"reason":"trimmed"'), TIMEOUT)

    assert (page["oldest"], offsets(page["messages"])) == (191, list(range(191, 201)))
    assert (gap["streams"]["a"]["oldest"], [*hot, *live]) == (191, list(range(191, 203)))
    assert place.server.log().count(path.name) == 1
    assert "Traceback" not in place.server.log()


async def test_an_archive_without_a_journal_is_refused_with_what_to_set(tmp_path: Path) -> None:
    result = run_ropewalk("serve", "--public", "--port", "0", "--archive_dir", str(tmp_path))

    assert result.returncode != 0
    assert "--data_dir" in result.stderr
