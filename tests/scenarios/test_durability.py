"""A server that is killed and restarted in its data directory keeps acknowledged messages, sessions and members."""

import asyncio
import contextlib
import json
import random
import resource
import socket
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from ropewalk.app.settings import Settings
from ropewalk.client import Backoff, Message, Publisher, Stream, connect
from ropewalk.core.ring import locate_shard
from tests.cable import Cable, cable, identifier
from tests.metrics import metrics, metrics_when
from tests.process_tree import keeper
from tests.scenarios.command_line import run_ropewalk
from tests.scenarios.python_clients import PATIENT
from tests.scenarios.shared_servers import WORKERS
from tests.server import RunningServer, publish, running_server
from tests.waiting import healthy, unhealthy, until

TIMEOUT = 60.0
SHARDS = Settings().journal.journal_shards
ALL = pytest.mark.tier("all")


def variants(*durabilities: str) -> pytest.MarkDecorator:
    """The first durability in tier standard; the others, and a server of several processes, in tier all."""
    first, *others = durabilities
    return pytest.mark.parametrize(
        ("durability", "flags"),
        [
            pytest.param(first, (), id=first),
            *(pytest.param(other, (), id=other, marks=ALL) for other in others),
            pytest.param(durabilities[-1], WORKERS, id=f"{durabilities[-1]}-workers", marks=ALL),
        ],
    )


class DataDirectory:
    """A data directory and the servers that use it, one after another, on one port."""

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


async def written(server: RunningServer, rows: int) -> None:
    """Wait until so many rows are in the journal. No response waits for rows of sessions."""
    await metrics_when(server, lambda found: found["journal_rows"] >= rows)


@variants("journal", "fsync")
async def test_crash_keeps_positions_uids_sessions_and_members(tmp_path: Path, durability: str, flags: tuple[str, ...]) -> None:
    with DataDirectory(tmp_path, durability, "--presence_ttl", "60s", *flags) as deployment:
        server = deployment.server
        before = [await publish(server, "a", json.dumps(n), uid=f"u{n}") for n in range(1, 6)]
        other = await publish(server, "b", '"other"')
        client = await Cable.connect(server.cable)
        await client.welcomed()
        for stream in ("c", "d"):
            await client.subscribe(stream)
        await client.subscribe("lobby", presence={"id": "bo", "info": {"name": "Bo"}})
        await client.until("presence")
        await publish(server, "c", "1")
        await client.messages(1)
        await publish(server, "d", "1", meta={"exclude_socket": client.sid})
        await written(server, 8 + 5)  # publications; connected, three subscribed, joined
        server.kill()
        await client.closed()
        await client.close()
        server = deployment.open()
        recovered = next(line for line in server.log().splitlines() if "cut_bytes=" in line)
        for fact in ("streams=4", "messages=8", "sessions=1", "reset_shards=0"):
            assert fact in recovered, recovered

        assert await history(server, "a") == [(n, n) for n in range(1, 6)]
        assert await publish(server, "a", "3", uid="u3") == {**before[2], "duplicate": True}
        assert await publish(server, "a", "6") == {**before[0], "offset": 6}
        assert await publish(server, "b", '"more"') == {**other, "offset": 2}

        _, page = await get(server, "/api/presence/lobby/users")
        assert page["records"] == [{"info": {"name": "Bo"}, "id": "bo"}]
        await publish(server, "c", "2")
        async with cable(server) as watcher:
            await watcher.subscribe("lobby")
            back = await Cable.connect(server.cable, sid=client.sid)
            welcome = await back.welcomed(restored=True)
            assert welcome["restored_ids"] == [identifier("c"), identifier("d"), identifier("lobby")]
            missed = await back.ask_history("c", client.positions["c"])
            assert [frame["message"] for frame in missed] == [2]
            assert await back.ask_history("d") == []
            await publish(server, "c", "3")
            assert await back.messages(1) == [3]
            await watcher.quiet()  # no member left or joined
            _, page = await get(server, "/api/presence/lobby/users")
            assert page["total"] == 1
            await back.close()


async def test_idle_sessions_are_not_written_again(tmp_path: Path) -> None:
    with DataDirectory(tmp_path, "journal", "--ping_interval", "1s") as deployment:
        clients = [await Cable.connect(deployment.server.cable) for _ in range(40)]
        for client in clients:
            await client.welcomed()
            await client.subscribe("idle")
        await written(deployment.server, 2 * len(clients))
        for _ in range(2):  # seconds
            await clients[-1].until("ping")
        assert (await metrics(deployment.server))["journal_written_rows"] == 2 * len(clients)
        for client in clients:
            await client.close()


@variants("memory")
async def test_crash_changes_the_epoch_of_unwritten_positions_and_members_that_do_not_return_leave(
    tmp_path: Path, durability: str, flags: tuple[str, ...]
) -> None:
    with DataDirectory(tmp_path, durability, "--presence_ttl", "3s", *flags) as deployment:
        async with cable(deployment.server) as client, cable(deployment.server) as member:
            await client.subscribe("a")
            await member.subscribe("lobby", presence={"id": "bo"})
            await member.until("presence")
            first = await publish(deployment.server, "a", "1")
            await client.messages(1)
            await written(deployment.server, 6)  # one publication; two connected, two subscribed, one joined
            server = deployment.crash()
        async with cable(server, sid=client.sid) as back:
            await back.send(command="history", identifier=identifier("a"), history={"streams": client.positions})
            refusal = await back.expect("reject_history")
            assert refusal["reason"] == "epoch_changed"
            await back.subscribe("lobby")
            _, page = await get(server, "/api/presence/lobby/users")
            if page["total"]:  # the member has not left before the subscription
                event = await back.until("presence")
                assert (event["message"]["type"], event["message"]["id"]) == ("leave", "bo")
            _, page = await get(server, "/api/presence/lobby/users")
            assert page["total"] == 0
        again = await publish(server, "a", "2")
        assert again["offset"] == 1
        assert again["epoch"] != first["epoch"]


@variants("memory", "journal", "fsync")
async def test_graceful_restart_loses_nothing_also_after_a_failed_start(
    tmp_path: Path, durability: str, flags: tuple[str, ...]
) -> None:
    with DataDirectory(tmp_path, durability, *flags) as deployment:
        client = await Cable.connect(deployment.server.cable)
        await client.welcomed()
        await client.subscribe("a")
        first = await publish(deployment.server, "a", "1", uid="u")
        await client.messages(1)
        assert deployment.server.stop() == 0, deployment.server.log()
        with socket.create_server(("127.0.0.1", 0)) as taken:
            words = ("--public", "--data_dir", str(tmp_path), "--durability", durability, "--port", str(taken.getsockname()[1]))
            assert run_ropewalk("serve", *words).returncode != 0
        server = deployment.open()
        assert await publish(server, "a", "1", uid="u") == {**first, "duplicate": True}
        assert await publish(server, "a", "2") == {**first, "offset": 2}
        async with cable(server, sid=client.sid) as back:
            assert [frame["message"] for frame in await back.ask_history("a", client.positions["a"])] == [2]
        await client.close()


async def test_second_server_in_the_same_directory_is_refused(tmp_path: Path) -> None:
    with DataDirectory(tmp_path, "journal") as deployment:
        refused = run_ropewalk("serve", "--public", "--port", "0", "--data_dir", str(tmp_path))
        assert refused.returncode != 0
        assert "Traceback" not in refused.stderr
        assert f"another server uses {tmp_path}" in refused.stderr
        await publish(deployment.server, "news", "hello")


def last_segment(data_dir: Path, stream: str) -> Path:
    """The file that grew last in the stream's shard."""
    return sorted((data_dir / "journal" / f"shard={locate_shard(stream, SHARDS):02}").glob("*.arrow"))[-1]


async def test_torn_tail_is_cut_and_a_damaged_record_costs_only_its_shard(tmp_path: Path) -> None:
    with DataDirectory(tmp_path, "journal") as deployment:
        others = [
            f"other/{number}" for number in range(20) if locate_shard(f"other/{number}", SHARDS) != locate_shard("a", SHARDS)
        ]
        first = [await publish(deployment.server, stream, "1") for stream in ("a", *others)]
        deployment.server.kill()
        path = last_segment(tmp_path, "a")
        with path.open("ab") as segment:
            segment.write(b"\x00" * 100)  # no publisher has a receipt for it
        server = deployment.open()
        assert await publish(server, "a", "2") == {**first[0], "offset": 2}
        assert (await metrics(server))["journal_cut_bytes"] == 100

        server.kill()
        damaged = bytearray(path.read_bytes())
        damaged[-20] ^= 0xFF
        path.write_bytes(damaged)
        server = deployment.open()
        again = [await publish(server, stream, "3") for stream in ("a", *others)]
        assert again[0]["offset"] == 1
        assert again[0]["epoch"] != first[0]["epoch"]
        assert again[1:] == [{**position, "offset": 2} for position in first[1:]]
        assert (await metrics(server))["journal_damaged_shards"] == 1
        assert f"shard {locate_shard('a', SHARDS)}" in server.log()


@ALL
async def test_positions_of_many_publishers_are_dense_and_in_order(tmp_path: Path) -> None:
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


@ALL
@pytest.mark.parametrize("flags", [(), WORKERS], ids=["alone", "workers"])
async def test_full_disk_refuses_publications_until_there_is_space(tmp_path: Path, flags: tuple[str, ...]) -> None:
    with DataDirectory(tmp_path, "journal", "--history_limit", "50", *flags) as deployment:
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

            async def accepted() -> bool:
                return await attempt() == 201

            statuses = [await attempt() for _ in range(30)]
            assert statuses[-1] == 503
            await unhealthy(server)
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (soft, hard))
            await until(accepted, server.log)
            await healthy(server)
        assert [position["offset"] for position in given] == list(range(1, len(given) + 1))
        assert {position["epoch"] for position in given} == {given[0]["epoch"]}
        assert len(await history(deployment.crash(), "a")) == min(50, len(given))


@ALL
@pytest.mark.parametrize(("durability", "flags"), [("journal", WORKERS), ("fsync", ())], ids=["journal-workers", "fsync"])
async def test_clients_miss_nothing_over_crashes_at_random_moments(
    tmp_path: Path, durability: str, flags: tuple[str, ...]
) -> None:
    quick = Backoff(first=0.02, cap=0.2)
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    count, streams = 150, ("a", "b", "c")
    with DataDirectory(tmp_path, durability, *flags) as deployment:
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
            clients = [await stack.enter_async_context(connect(url, backoff=quick, **PATIENT)) for _ in range(5)]
            readers = [asyncio.create_task(read(await client.subscribe(name))) for client in clients for name in streams]
            writers = [asyncio.create_task(write(name)) for name in streams]
            for _ in range(3):
                await asyncio.sleep(chance.random() * 0.4)
                await asyncio.to_thread(deployment.crash)
            await asyncio.wait_for(asyncio.gather(*writers, *readers), 2 * TIMEOUT)
