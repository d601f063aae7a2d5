"""An application behind several workers: it runs in each of them, and hears of every session that is gone for good, once."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import aiohttp
import pytest

from tests.cable import Cable
from tests.metrics import metrics_when
from tests.server import RunningServer, running_server
from tests.services import nats_server, redis_server

WITHIN = 30.0
CLIENTS = 30

APP = """
import os
from ropewalk import App, Channel, Connection

app = App()

def note(word: str, connection: Connection) -> None:
    with open(os.environ["EVENTS"], "a") as file:
        file.write(f"{word} {connection.identity['name']}\\n")

@app.on_connect
async def connect(connection: Connection) -> None:
    connection.identify(name=connection.params["name"])
    note("connect", connection)

@app.on_disconnect
async def disconnect(connection: Connection) -> None:
    note("disconnect", connection)
"""


@pytest.fixture(params=["memory", "redis", "nats"])
def broker(request: pytest.FixtureRequest) -> Iterator[tuple[str, ...]]:
    with ExitStack() as stack:
        match request.param:
            case "redis":
                yield "--broker", "redis", "--redis_url", stack.enter_context(redis_server()).url
            case "nats":
                yield "--broker", "nats", "--nats_servers", stack.enter_context(nats_server()).url
            case _:
                yield ("--broker", "memory")


class Running:
    """A server with the application, and what that has noted."""

    def __init__(self, server: RunningServer, events: Path) -> None:
        self.server = server
        self._events = events

    def noted(self, word: str) -> Counter[str]:
        lines = [line.split() for line in self._events.read_text().splitlines()]
        return Counter(name for said, name in lines if said == word)

    async def clients(self) -> list[Cable]:
        clients = [await Cable.connect(self.server.cable, params={"name": f"c{number}"}) for number in range(CLIENTS)]
        for client in clients:
            await client.welcomed()
        return clients


@pytest.fixture
def running(broker: tuple[str, ...], tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Running]:
    (tmp_path / "channels.py").write_text(APP)
    events = tmp_path / "events"
    events.touch()
    sessions = ("--sessions_ttl", "2s" if "expires" in request.node.name else "1h")
    app = ("--app", "channels:app", "--app_dir", str(tmp_path), "--disconnect_mode", "always")
    with running_server(*broker, *app, *sessions, "--workers", "2", "--broadcast_key", "none", EVENTS=str(events)) as server:
        yield Running(server, events)


NAMES = {f"c{number}": 1 for number in range(CLIENTS)}


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(WITHIN):
        while not holds():
            await asyncio.sleep(0.05)


async def test_every_session_that_expires_is_told_of_once(running: Running) -> None:
    for client in await running.clients():
        await client.cut()
    await until(lambda: sum(running.noted("disconnect").values()) >= CLIENTS)
    assert running.noted("disconnect") == NAMES
    assert running.noted("connect") == NAMES


async def test_every_session_that_is_ended_by_order_while_it_is_away_is_told_of_once(running: Running) -> None:
    for client in await running.clients():
        await client.cut()
    await metrics_when(running.server, lambda now: now["sessions"] == 0)
    async with aiohttp.ClientSession(running.server.url) as http:
        for name in NAMES:
            order = {"command": "disconnect", "payload": {"identifier": json.dumps({"name": name}, separators=(",", ":"))}}
            async with http.post("/_broadcast", json=order) as response:
                assert response.status in (200, 201), await response.text()
    await until(lambda: sum(running.noted("disconnect").values()) >= CLIENTS)
    assert running.noted("disconnect") == NAMES
