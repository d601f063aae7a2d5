"""Restarts that refuse no connection: by an inherited socket or by a takeover, and with reconnect times for clients."""

import asyncio
import contextlib
import signal
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from tests.cable import Cable, cable
from tests.metrics import metrics_when
from tests.scenarios.python_clients import CABLE
from tests.scenarios.relay import relay_to
from tests.server import RunningServer, publish, running_server

CROWD = 100
STOP_SECONDS = 60


def listening_socket() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0), backlog=4096)


class Returning:
    """A client that reconnects as soon as it is disconnected, and counts its refusals."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.refused = 0
        self.missed: list[object] = []

    async def open(self) -> None:
        self._client = await Cable.connect(self._url)
        await self._client.welcomed()
        await self._client.subscribe("news", history={"since": 1})

    async def leave_and_return(self) -> None:
        former = self._client
        await former.closed()
        await former.close()
        self._client = await self._connect(former.sid)
        await self._client.welcomed(restored=True)
        self._client.positions = former.positions
        self.missed = [frame["message"] for frame in await self._client.ask_history("news")]

    async def received_exactly(self, *messages: str) -> bool:
        """Whether these are all messages since the first connection: the missed ones, then those that arrived live."""
        live = await self._client.messages(len(messages) - len(self.missed))
        await self._client.quiet()
        return [*self.missed, *live] == [*messages]

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


@pytest.mark.tier("all")
async def test_clients_wait_in_the_queue_of_an_inherited_socket(tmp_path: Path) -> None:
    flags = ("--public", "--data_dir", str(tmp_path), "--shutdown_spread", "1s")
    with listening_socket() as listening, running_server(*flags, inherited=listening) as first:
        assert first.port == listening.getsockname()[1]
        async with crowd(first) as clients:
            returning = asyncio.gather(*(client.leave_and_return() for client in clients))
            first.process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(first.process.wait, STOP_SECONDS) == 0
            posted = asyncio.create_task(publish(first, "news", "during the restart"))
            with running_server(*flags, inherited=listening):
                await asyncio.gather(returning, posted)
                assert sum(client.refused for client in clients) == 0
                assert all([await client.received_exactly("during the restart") for client in clients])


@pytest.mark.tier("all")
async def test_takeover_refuses_no_connection(tmp_path: Path) -> None:
    flags = ("--public", "--data_dir", str(tmp_path), "--shutdown_spread", "1s", "--takeover")
    with running_server(*flags) as first:
        async with crowd(first) as clients:
            returning = asyncio.gather(*(client.leave_and_return() for client in clients))
            with contextlib.ExitStack() as stack:
                running = running_server(*flags, "--port", str(first.port))
                second = await asyncio.to_thread(running.__enter__)
                stack.push(running.__exit__)
                assert await asyncio.to_thread(first.process.wait, STOP_SECONDS) == 0
                await returning
                assert sum(client.refused for client in clients) == 0
                await publish(second, "news", "hello")
                assert all([await client.received_exactly("hello") for client in clients])
                assert "took over" in second.log()


async def test_clients_that_ask_for_it_get_a_reconnect_time() -> None:
    with running_server("--public", "--reconnect_rate", "10") as server:
        asking = [await Cable.connect(server.cable, params={"reconnect_in": "1"}) for _ in range(3)]
        for client in asking:
            await client.welcomed()
        async with cable(server) as plain:
            server.process.send_signal(signal.SIGTERM)
            assert await plain.until("disconnect") == {"type": "disconnect", "reason": "server_restart", "reconnect": True}
            frames = [await client.until("disconnect") for client in asking]
        assert [frame["reconnect_in"] for frame in frames] == [0, 100, 200]
        for client in asking:
            await client.close()


async def test_python_client_waits_for_its_reconnect_time() -> None:
    flags = ("--public", "--reconnect_rate", "1")
    with listening_socket() as listening, running_server(*flags, inherited=listening) as first:
        async with relay_to(first.port) as relay, CABLE.client(first), CABLE.client(relay):  # reconnect times: 0 and 1 second
            begun = time.monotonic()
            first.process.send_signal(signal.SIGTERM)
            await relay.wait(lambda: relay.accepted >= 2)  # the relay accepts even while no server runs
            assert time.monotonic() - begun >= 1.0
            assert await asyncio.to_thread(first.process.wait, STOP_SECONDS) == 0
            with running_server(*flags, inherited=listening) as second:
                await metrics_when(second, lambda now: now["sessions"] == 2)
