"""A server that is killed and started again on the same directory: what was acknowledged is there, and clients go on."""

import asyncio
import contextlib
import json
import random
import resource
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from ropewalk.app.settings import Settings
from ropewalk.client import Backoff, Message, Publisher, Stream, connect
from ropewalk.core.ring import shard_of
from tests.cable import Cable, cable, identifier
from tests.metrics import metrics, metrics_when
from tests.process_tree import keeper
from tests.scenarios.command_line import run_ropewalk
from tests.server import RunningServer, publish, running_server

TIMEOUT = 30.0
SHARDS = Settings().journal.journal_shards
DURABLE = pytest.mark.parametrize("durability", ["journal", "fsync"])
EITHER_WAY = pytest.mark.usefixtures("processes")
EVERY = pytest.mark.parametrize("durability", ["memory", "journal", "fsync"])


class DataDirectory:
    """A data directory and the servers that live in it, one after another, behind one address."""

    def __init__(self, data_dir: Path, durability: str, *flags: str) -> None:
        self._flags = ("--public", "--data_dir", str(data_dir), "--durability", durability, "--history_limit", "5000", *flags)
        self._stack = contextlib.ExitStack()
        self._port = 0

    def __enter__(self) -> "DataDirectory":
        self.open()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()

    def open(self) -> RunningServer:
        self.server = self._stack.enter_context(running_server(*self._flags, "--port", str(self._port)))
        self._port = self.server.port
        return self.server

    def crash(self) -> RunningServer:
        self.server.kill()
        return self.open()

    def restart(self) -> RunningServer:
        assert self.server.stop() == 0, self.server.log()
        return self.open()


async def get(server: RunningServer, path: str) -> tuple[int, Any]:
    async with aiohttp.ClientSession() as http, http.get(server.url + path) as response:
        return response.status, await response.json()


async def history(server: RunningServer, stream: str) -> list[tuple[int, Any]]:
    found: list[tuple[int, Any]] = []
    after: int | None = 0
    while after is not None:
        _, page = await get(server, f"/api/streams/{stream}/history?after={after}&limit=1000")
        found += [(message["offset"], message["message"]) for message in page["messages"]]
        after = page["next"]
    return found


async def health(server: RunningServer, status: int) -> None:
    """Until it is this. Workers hear of the store's once a second."""
    deadline = time.monotonic() + TIMEOUT
    while (found := await get(server, "/health"))[0] != status:
        assert time.monotonic() < deadline, found
        await asyncio.sleep(0.05)


async def written(server: RunningServer, rows: int) -> None:
    """Until so many rows are in the journal, for those that nobody waits for."""
    await metrics_when(server, lambda found: found["journal_rows"] >= rows)


@EITHER_WAY
@DURABLE
async def test_positions_epochs_and_uids_survive_a_crash(tmp_path: Path, durability: str) -> None:
    with DataDirectory(tmp_path, durability) as deployment:
        before = [await publish(deployment.server, "a", json.dumps(n), uid=f"u{n}") for n in range(1, 6)]
        other = await publish(deployment.server, "b", '"other"')
        server = deployment.crash()
        assert await history(server, "a") == [(n, n) for n in range(1, 6)]
        assert await publish(server, "a", "3", uid="u3") == {**before[2], "duplicate": True}
        assert await publish(server, "a", "6") == {**before[0], "offset": 6}
        assert await publish(server, "b", '"more"') == {**other, "offset": 2}


@EITHER_WAY
@DURABLE
async def test_a_client_resumes_by_its_sid_as_if_nothing_had_happened(tmp_path: Path, durability: str) -> None:
    with DataDirectory(tmp_path, durability) as deployment:
        client = await Cable.connect(deployment.server.cable)
        await client.welcomed()
        for stream in ("a", "b"):
            await client.subscribe(stream)
        await publish(deployment.server, "a", "1")
        await client.messages(1)
        await publish(deployment.server, "b", "1", meta={"exclude_socket": client.sid})
        await written(deployment.server, 5)
        deployment.server.kill()
        await client.closed()
        await client.close()
        server = deployment.open()
        await publish(server, "a", "2")
        back = await Cable.connect(server.cable, sid=client.sid)
        welcome = await back.welcomed(restored=True)
        assert welcome["restored_ids"] == [identifier("a"), identifier("b")]
        missed = await back.ask_history("a", client.positions["a"])
        assert [frame["message"] for frame in missed] == [2]
        assert await back.ask_history("b") == []
        await publish(server, "a", "3")
        assert await back.messages(1) == [3]
        await back.close()


async def test_sessions_that_do_not_change_are_not_written_again(tmp_path: Path) -> None:
    with DataDirectory(tmp_path, "journal", "--ping_interval", "1s") as deployment:
        clients = [await Cable.connect(deployment.server.cable) for _ in range(120)]
        for client in clients:
            await client.welcomed()
            await client.subscribe("idle")
        await written(deployment.server, 2 * len(clients))
        for _ in range(3):  # seconds
            await clients[-1].until("ping")
        assert (await metrics(deployment.server))["journal_written_rows"] == 2 * len(clients)
        for client in clients:
            await client.close()


@EITHER_WAY
async def test_members_stay_present_and_nobody_hears_of_the_crash(tmp_path: Path) -> None:
    with DataDirectory(tmp_path, "journal", "--presence_ttl", "60s") as deployment:
        client = await Cable.connect(deployment.server.cable)
        await client.welcomed()
        await client.subscribe("a", presence={"id": "bo", "info": {"name": "Bo"}})
        await client.until("presence")
        await publish(deployment.server, "a", "1")
        await written(deployment.server, 4)
        server = deployment.crash()
        _, page = await get(server, "/api/presence/a/users")
        assert page["records"] == [{"info": {"name": "Bo"}, "id": "bo"}]
        async with cable(server) as watcher:
            await watcher.subscribe("a")
            async with cable(server, sid=client.sid) as back:
                await back.quiet()
                await watcher.quiet()
                _, page = await get(server, "/api/presence/a/users")
                assert page["total"] == 1
        await client.close()


@EITHER_WAY
async def test_a_member_who_does_not_come_back_after_a_crash_leaves(tmp_path: Path) -> None:
    with DataDirectory(tmp_path, "journal", "--presence_ttl", "3s") as deployment:
        client = await Cable.connect(deployment.server.cable)
        await client.welcomed()
        await client.subscribe("a", presence={"id": "bo"})
        await client.until("presence")
        await publish(deployment.server, "a", "1")
        await written(deployment.server, 4)
        async with cable(deployment.crash()) as watcher:
            await watcher.subscribe("a")
            event = await watcher.until("presence")
            assert (event["message"]["type"], event["message"]["id"]) == ("leave", "bo")
        await client.close()


@EITHER_WAY
async def test_positions_given_before_they_were_written_change_their_epoch_after_a_crash(tmp_path: Path) -> None:
    with DataDirectory(tmp_path, "memory") as deployment:
        client = await Cable.connect(deployment.server.cable)
        await client.welcomed()
        await client.subscribe("a")
        first = await publish(deployment.server, "a", "1")
        await client.messages(1)
        await written(deployment.server, 3)
        server = deployment.crash()
        async with cable(server, sid=client.sid) as back:
            await back.send(command="history", identifier=identifier("a"), history={"streams": client.positions})
            refusal = await back.expect("reject_history")
            assert refusal["reason"] == "epoch_changed"
        again = await publish(server, "a", "2")
        assert again["offset"] == 1
        assert again["epoch"] != first["epoch"]
        await client.close()


@EITHER_WAY
@EVERY
async def test_a_restart_in_order_loses_nothing_whatever_the_durability(tmp_path: Path, durability: str) -> None:
    with DataDirectory(tmp_path, durability) as deployment:
        client = await Cable.connect(deployment.server.cable)
        await client.welcomed()
        await client.subscribe("a")
        first = await publish(deployment.server, "a", "1", uid="u")
        await client.messages(1)
        server = deployment.restart()
        assert await publish(server, "a", "1", uid="u") == {**first, "duplicate": True}
        assert await publish(server, "a", "2") == {**first, "offset": 2}
        async with cable(server, sid=client.sid) as back:
            assert [frame["message"] for frame in await back.ask_history("a", client.positions["a"])] == [2]
        await client.close()


async def test_a_start_that_fails_does_not_look_like_a_crash(tmp_path: Path) -> None:
    with DataDirectory(tmp_path, "memory") as deployment:
        first = await publish(deployment.server, "a", "1")
        assert deployment.server.stop() == 0
        with running_server("--public") as squatter:
            flags = ("--public", "--data_dir", str(tmp_path), "--durability", "memory", "--port", str(squatter.port))
            assert run_ropewalk("serve", *flags).returncode != 0
        assert await publish(deployment.open(), "a", "2") == {**first, "offset": 2}


async def test_two_servers_cannot_share_a_directory(tmp_path: Path) -> None:
    with DataDirectory(tmp_path, "journal"):
        refused = run_ropewalk("serve", "--public", "--port", "0", "--data_dir", str(tmp_path))
        assert refused.returncode != 0
        assert "Traceback" not in refused.stderr
        assert str(tmp_path) in refused.stderr


async def test_the_start_says_what_was_recovered(tmp_path: Path) -> None:
    with DataDirectory(tmp_path, "journal") as deployment:
        await publish(deployment.server, "a", "1")
        await publish(deployment.server, "b", "1")
        line = next(line for line in deployment.crash().log().splitlines() if "cut_bytes=" in line)
        for fact in ("streams=2", "messages=2", "sessions=0", "reset_shards=0"):
            assert fact in line, line


def segment_of(data_dir: Path, stream: str) -> Path:
    """The file that grew last in the stream's shard."""
    return sorted((data_dir / "journal" / f"shard={shard_of(stream, SHARDS):02}").glob("*.arrow"))[-1]


async def test_a_torn_tail_that_nobody_was_promised_changes_nothing(tmp_path: Path) -> None:
    with DataDirectory(tmp_path, "journal") as deployment:
        first = await publish(deployment.server, "a", "1")
        deployment.server.kill()
        with segment_of(tmp_path, "a").open("ab") as segment:
            segment.write(b"\x00" * 100)
        server = deployment.open()
        assert await publish(server, "a", "2") == {**first, "offset": 2}
        assert (await metrics(server))["journal_cut_bytes"] == 100


async def test_a_stream_whose_record_is_damaged_begins_a_new_epoch_and_others_go_on(tmp_path: Path) -> None:
    with DataDirectory(tmp_path, "journal") as deployment:
        others = [f"other/{number}" for number in range(20) if shard_of(f"other/{number}", SHARDS) != shard_of("a", SHARDS)]
        first = [await publish(deployment.server, stream, "1") for stream in ("a", *others)]
        deployment.server.kill()
        path = segment_of(tmp_path, "a")
        damaged = bytearray(path.read_bytes())
        damaged[-20] ^= 0xFF
        path.write_bytes(damaged)
        server = deployment.open()
        again = [await publish(server, stream, "2") for stream in ("a", *others)]
        assert again[0]["offset"] == 1
        assert again[0]["epoch"] != first[0]["epoch"]
        assert again[1:] == [{**position, "offset": 2} for position in first[1:]]
        assert (await metrics(server))["journal_damaged_shards"] == 1
        assert f"shard {shard_of('a', SHARDS)}" in server.log()


async def test_many_publishers_get_dense_positions_and_readers_see_them_in_order(tmp_path: Path) -> None:
    with DataDirectory(tmp_path, "fsync") as deployment:
        async with cable(deployment.server) as reader, aiohttp.ClientSession() as http:
            await reader.subscribe("a")

            async def write(name: int) -> list[tuple[int, str]]:
                given = []
                for number in range(20):
                    text = f"{name}/{number}"
                    body = {"stream": "a", "data": json.dumps(text)}
                    async with http.post(f"{deployment.server.url}/_broadcast", json=body) as response:
                        given.append(((await response.json())["publications"][0]["offset"], text))
                return given

            lines = await asyncio.gather(*(write(name) for name in range(30)))
            for line in lines:
                assert line == sorted(line), "one publisher's messages keep their order"
            expected = sorted(given for line in lines for given in line)
            assert [offset for offset, _ in expected] == list(range(1, 601))
            assert await reader.messages(600) == [text for _, text in expected]
        assert await history(deployment.crash(), "a") == expected


@EITHER_WAY
async def test_a_full_disk_refuses_publications_until_there_is_room_again(tmp_path: Path) -> None:
    with DataDirectory(tmp_path, "journal", "--history_limit", "50") as deployment:
        server, payload = deployment.server, json.dumps("x" * 8000)
        pid = keeper(server)
        given = [await publish(server, "a", payload)]
        soft, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (100_000, hard))
        async with aiohttp.ClientSession() as http:

            async def attempt() -> int:
                async with http.post(f"{server.url}/_broadcast", json={"stream": "a", "data": payload}) as response:
                    if response.status == 201:
                        given.append((await response.json())["publications"][0])
                    return response.status

            statuses = [await attempt() for _ in range(30)]
            assert statuses[-1] == 503
            await health(server, 503)
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (soft, hard))
            deadline = time.monotonic() + TIMEOUT
            while await attempt() != 201:
                assert time.monotonic() < deadline, server.log()
                await asyncio.sleep(0.05)
            await health(server, 200)
        assert [position["offset"] for position in given] == list(range(1, len(given) + 1))
        assert {position["epoch"] for position in given} == {given[0]["epoch"]}
        assert len(await history(deployment.crash(), "a")) == min(50, len(given))


@EITHER_WAY
@DURABLE
async def test_sdk_clients_miss_nothing_over_crashes_at_random_moments(tmp_path: Path, durability: str) -> None:
    quick = Backoff(first=0.02, cap=0.2)
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    count, streams = 150, ("a", "b", "c")
    with DataDirectory(tmp_path, durability) as deployment:
        url = deployment.server.url

        async def write(stream: str) -> None:
            async with Publisher(url, attempts=500, backoff=quick) as publisher:
                for number in range(1, count + 1):
                    receipt = await publisher.publish(stream, number)
                    assert receipt.offset == number

        async def read(stream: Stream) -> list[int]:
            found: list[int] = []
            while len(found) < count:
                event = await asyncio.wait_for(anext(stream), TIMEOUT)
                assert isinstance(event, Message), event
                assert event.offset == event.data == len(found) + 1
                found.append(event.data)
            return found

        async with contextlib.AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(connect(url, backoff=quick)) for _ in range(5)]
            readers = [asyncio.create_task(read(await client.subscribe(name))) for client in clients for name in streams]
            writers = [asyncio.create_task(write(name)) for name in streams]
            for _ in range(4):
                await asyncio.sleep(chance.random() * 0.4)
                await asyncio.to_thread(deployment.crash)
            await asyncio.wait_for(asyncio.gather(*writers, *readers), 2 * TIMEOUT)
