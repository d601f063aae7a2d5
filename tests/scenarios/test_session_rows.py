"""Rows of sessions in the journal: each event once, also after the loss of a process."""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from itertools import chain
from pathlib import Path
from typing import Any

import aiohttp
import pyarrow as pa
import pytest

from ropewalk.adapters.backends.workers.store import RECONNECT_GRACE_SECONDS
from tests.cable import BASE, Cable, Closed, cable
from tests.clients.credentials import SECRET, token
from tests.metrics import metrics_when
from tests.process_tree import store, worker_of, workers
from tests.scenarios.shared_servers import WORKERS
from tests.server import RunningServer, publish, running_server
from tests.waiting import GROWING_SECONDS, SECONDS, until

CROWD = 8  # enough for both of two workers

Rows = list[dict[str, Any]]


async def ended(server: RunningServer, ids: str) -> int:
    """How many sessions a remote disconnect has ended."""
    body = {"command": "disconnect", "payload": {"identifier": ids}}
    async with aiohttp.ClientSession() as http, http.post(f"{server.url}/_broadcast", json=body) as response:
        assert response.status == 201, await response.text()
        return int((await response.json())["disconnected"])


async def session_rows(server: RunningServer) -> Rows:
    """All rows that are not publications; those of one session are in their order."""
    found: Rows = []
    async with aiohttp.ClientSession(server.url) as http:
        async with http.get("/journal") as response:
            spans = (await response.json())["spans"]
        for span in spans:
            if span["first"] < span["end"]:
                async with http.get(f"/journal/{span['shard']}?from={span['first']}&to={span['end']}") as response:
                    found += pa.ipc.open_stream(await response.read()).read_all().to_pylist()
    return [row for row in found if row["event"] != "publish"]


async def rows_when(server: RunningServer, fits: Callable[[Rows], object]) -> Rows:
    deadline = time.monotonic() + SECONDS
    while not fits(found := await session_rows(server)):
        assert time.monotonic() < deadline, [(row["event"], row["sid"]) for row in found]
        await asyncio.sleep(0.2)
    return found


def events(rows: Rows, sid: str) -> list[str]:
    return [row["event"] for row in rows if row["sid"] == sid]


def counted(rows: Rows, event: str) -> int:
    return sum(row["event"] == event for row in rows)


EITHER = pytest.mark.parametrize("flags", [(), pytest.param(WORKERS, marks=pytest.mark.tier("all"))], ids=["alone", "workers"])


@EITHER
async def test_every_event_of_a_session_is_one_row(tmp_path: Path, flags: tuple[str, ...]) -> None:
    for seconds in GROWING_SECONDS:
        if await events_are_rows(tmp_path / str(seconds), seconds, flags):
            return
    pytest.fail("no client could resume in time")


async def events_are_rows(home: Path, seconds: int, flags: tuple[str, ...]) -> bool:
    """False if a client resumed too late, after so many seconds."""
    times = ("--presence_ttl", f"{seconds}s", "--sessions_ttl", f"{seconds}s")
    with running_server("--public", "--data_dir", str(home), *times, *flags) as server:
        lives = await asyncio.gather(*(two_lives(server, f"a{number}", seconds) for number in range(CROWD)))
        if "" in chain(*lives):
            return False
        rows = await rows_when(server, lambda rows: counted(rows, "ended") >= 2 * CROWD)
        for first, second in lives:
            assert events(rows, first) == ["connected", "subscribed", "joined", "disconnected", "ended"]
            assert events(rows, second) == ["restored", "joined", "disconnected", "ended"]
        assert counted(await rows_when(server, lambda rows: counted(rows, "left") >= CROWD), "left") == CROWD
    return True


async def two_lives(server: RunningServer, stream: str, seconds: int) -> tuple[str, str]:
    """The sids of a client that was cut off, resumed, and closed. The second is empty if that took as long as `seconds`."""
    async with cable(server) as client:
        await client.subscribe(stream, presence={"id": client.sid})
        await client.expect("presence")
        await client.quiet()  # the presence event may come before the row
        begun = time.monotonic()
        await client.cut()
    async with cable(server, welcome=False, sid=client.sid) as back:
        welcome = await back.expect("welcome")
        if time.monotonic() - begun >= seconds:
            return client.sid, ""
        assert welcome["restored"] is True
        await back.quiet()
    return client.sid, welcome["sid"]


@EITHER
async def test_remote_disconnect_is_one_row_and_ends_each_session_once(tmp_path: Path, flags: tuple[str, ...]) -> None:
    flags += ("--jwt_secret", SECRET, "--data_dir", str(tmp_path), "--public_streams", "--broadcast_key", "none")
    with running_server(*flags, "--journal_token", "none") as server:
        async with crowd(server, params={"jid": token("user/1")}) as clients:
            away = clients[::2]
            for client in away:
                await client.cut()
            await metrics_when(server, lambda now: now["sessions_kept"] == len(away))
            assert await ended(server, "user/1") == CROWD
            rows = await rows_when(server, lambda rows: counted(rows, "ended") == CROWD)
        assert counted(rows, "revoked") == 1
        for client in clients:
            twice = ["disconnected"] if client in away else []  # it was kept, and then deleted
            assert events(rows, client.sid) == ["connected", "subscribed", "disconnected", *twice, "ended"]


@contextlib.asynccontextmanager
async def crowd(server: RunningServer, **options: Any) -> AsyncIterator[list[Cable]]:
    async with contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(cable(server, **options)) for _ in range(CROWD)]
        for client in clients:
            await client.subscribe("a")
        yield clients


# --- when a process is lost -------------------------------------------------------------------------------------------


@pytest.mark.tier("all")
async def test_sessions_survive_lost_stores_and_then_a_crash(tmp_path: Path) -> None:
    flags = ("--public", "--data_dir", str(tmp_path), *WORKERS)
    with running_server(*flags) as server:
        async with crowd(server) as clients:
            await rows_when(server, lambda rows: counted(rows, "subscribed") == CROWD)
            for lost in (1, 2):
                os.kill(store(server), signal.SIGKILL)
                await until(lambda lost=lost: server.log().count("connected to the store again") == 2 * lost)  # type: ignore[misc]
                await publish(server, "a", str(lost))
                for client in clients:
                    assert await client.messages(1) == [lost]
            await asyncio.sleep(RECONNECT_GRACE_SECONDS + 1)  # rows about lost sessions are written within this time
            rows = await session_rows(server)
            found = [events(rows, client.sid) for client in clients]
            assert all(each.pop() == "alive" for each in found)  # written in case the store lost earlier rows
            assert [[event for event in each if event != "alive"] for each in found] == [["connected", "subscribed"]] * CROWD
            server.kill()
            for client in clients:
                with pytest.raises(Closed):
                    await client.next()
    with running_server(*flags) as after:
        for client in clients:
            async with cable(after, sid=client.sid) as back:
                assert await back.ask_history("a", client.positions["a"]) == []


@pytest.mark.tier("all")
async def test_sessions_of_a_lost_worker_are_disconnected_once(tmp_path: Path) -> None:
    flags = ("--public", "--data_dir", str(tmp_path), *WORKERS, "--sessions_ttl", "2s")
    with running_server(*flags) as server:
        async with crowd(server) as clients, crowd(server, protocol=BASE) as simple:
            victim = worker_of(server, clients[0].port)
            lost = [client for client in (*clients, *simple) if worker_of(server, client.port) == victim]
            os.kill(victim, signal.SIGKILL)
            await until(lambda: victim not in workers(server))
            rows = await rows_when(server, lambda rows: counted(rows, "ended") == len(lost))
            for client in (*clients, *simple):
                over = ["disconnected", "ended"] if client in lost else []
                assert events(rows, client.sid) == ["connected", "subscribed", *over]
            details = [row["detail"] for row in rows if row["event"] == "disconnected"]
            assert all("crashed" in detail for detail in details)
