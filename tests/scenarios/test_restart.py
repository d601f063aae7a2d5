"""A restart without a refused connection: the listening socket outlives the process, or the next process listens beside it."""

import asyncio
import contextlib
import signal
import socket
import statistics
import time
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from ropewalk.client import connect
from tests.cable import Cable, Closed, cable
from tests.metrics import metrics_when
from tests.server import RunningServer, publish, running_server

CROWD = 300
STOP_SECONDS = 30


def listening_socket() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0), backlog=4096)


class Returning:
    """A client that comes back as soon as it is told to leave, and notes how long it was away and how often it was refused."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.refused = 0
        self.outage = 0.0
        self.missed: list[object] = []

    async def open(self) -> None:
        self._client = await Cable.connect(self._url)
        await self._client.welcomed()
        await self._client.subscribe("news", history={"since": 1})

    async def leave_and_return(self) -> None:
        former = self._client
        try:
            while True:
                await former.until("never")
        except Closed:
            left = time.monotonic()
        await former.close()
        self._client = await self._connect(former.sid)
        await self._client.welcomed(restored=True)
        self.outage = time.monotonic() - left
        self._client.positions = former.positions
        self.missed = [frame["message"] for frame in await self._client.ask_history("news")]

    async def _connect(self, sid: str) -> Cable:
        while True:
            try:
                return await Cable.connect(self._url, sid=sid)
            except aiohttp.ClientConnectionError:
                self.refused += 1
                await asyncio.sleep(0.01)

    async def close(self) -> None:
        await self._client.close()


@contextlib.asynccontextmanager
async def crowd(server: RunningServer) -> AsyncIterator[list[Returning]]:
    clients = [Returning(server.cable) for _ in range(CROWD)]
    try:
        for client in clients:
            await client.open()
        yield clients
    finally:
        for client in clients:
            await client.close()


def report(how: str, clients: list[Returning], start_up: float) -> float:
    """The median outage in start-up times."""
    ratio = statistics.median(client.outage for client in clients) / start_up
    print(f"{how}: median outage {ratio:.2f} start-up times of {start_up:.2f} s, {sum(c.refused for c in clients)} refusals")
    return ratio


@pytest.mark.alone
async def test_with_an_inherited_socket_clients_wait_in_its_queue_for_the_next_process(tmp_path: Path) -> None:
    flags = ("--public", "--data_dir", str(tmp_path), "--shutdown_spread", "1s")
    with listening_socket() as listening, running_server(*flags, inherited=listening) as first:
        assert first.port == listening.getsockname()[1]
        async with crowd(first) as clients:
            returning = asyncio.gather(*(client.leave_and_return() for client in clients))
            first.process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(first.process.wait, STOP_SECONDS) == 0
            posted = asyncio.create_task(publish(first, "news", "while nobody was there"))
            begun = time.monotonic()
            with running_server(*flags, inherited=listening) as second:
                start_up = time.monotonic() - begun
                await asyncio.gather(returning, posted)
                ratio = report("inherited socket", clients, start_up)
                assert sum(client.refused for client in clients) == 0
                assert all(client.missed in ([], ["while nobody was there"]) for client in clients)
                assert "Traceback" not in first.log() + second.log()
    assert ratio < 6


@pytest.mark.alone
async def test_a_process_takes_over_from_the_one_that_runs(tmp_path: Path) -> None:
    flags = ("--public", "--data_dir", str(tmp_path), "--shutdown_spread", "1s", "--takeover")
    begun = time.monotonic()
    with running_server(*flags) as first:
        start_up = time.monotonic() - begun
        async with crowd(first) as clients:
            returning = asyncio.gather(*(client.leave_and_return() for client in clients))
            with contextlib.ExitStack() as stack:
                running = running_server(*flags, "--port", str(first.port))
                second = await asyncio.to_thread(running.__enter__)
                stack.push(running.__exit__)
                assert await asyncio.to_thread(first.process.wait, STOP_SECONDS) == 0
                await returning
                ratio = report("takeover", clients, start_up)
                assert sum(client.refused for client in clients) == 0
                await publish(second, "news", "hello")
                assert "took over" in second.log()
                assert "Traceback" not in first.log() + second.log()
    assert ratio < 6


async def test_without_takeover_a_second_server_is_refused_the_data_directory(tmp_path: Path) -> None:
    flags = ("--public", "--data_dir", str(tmp_path))
    with running_server(*flags) as first:
        with pytest.raises(AssertionError, match="another server uses"), running_server(*flags):
            pass
        await publish(first, "news", "hello")


async def test_clients_that_ask_for_it_are_told_when_to_come_back_and_no_others() -> None:
    with running_server("--public", "--reconnect_rate", "10") as server:
        asking = [await Cable.connect(server.cable, params={"reconnect_in": "1"}) for _ in range(3)]
        for client in asking:
            await client.welcomed()
        async with cable(server) as plain:
            server.process.send_signal(signal.SIGTERM)
            assert await plain.until("disconnect") == {"type": "disconnect", "reason": "server_restart", "reconnect": True}
            told = [await client.until("disconnect") for client in asking]
        assert [frame["reconnect_in"] for frame in told] == [0, 100, 200]
        for client in asking:
            await client.close()


async def test_our_own_client_asks_for_it_and_stays_away_that_long(tmp_path: Path) -> None:
    flags = ("--public", "--data_dir", str(tmp_path), "--reconnect_rate", "1")
    with listening_socket() as listening, running_server(*flags, inherited=listening) as first:
        async with connect(first.url), connect(first.url):  # told to come back after 0 and after 1000 milliseconds
            told = time.monotonic()
            assert await asyncio.to_thread(first.stop) == 0
            with running_server(*flags, inherited=listening) as second:
                await metrics_when(second, lambda now: now["sessions"] == 2)
                assert time.monotonic() - told >= 1.0
