"""An application behind several workers: it runs in each of them and gets one Disconnect call for each session."""

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import pytest

from tests.cable import Cable
from tests.metrics import metrics_when
from tests.server import RunningServer, running_server
from tests.services import nats_server, redis_server
from tests.waiting import until

CLIENTS = 30

APP = """
import os
from ropewalk import App, Channel, Connection

app = App()

def note(event: str, connection: Connection) -> None:
    with open(os.environ["EVENTS"], "a") as file:
        file.write(f"{event} {connection.identity['name']}\\n")

@app.on_connect
async def connect(connection: Connection) -> None:
    connection.identify(name=connection.params["name"])
    note("connect", connection)

@app.on_disconnect
async def disconnect(connection: Connection) -> None:
    note("disconnect", connection)
"""

ONCE_EACH = {f"c{number}": 1 for number in range(CLIENTS)}


class RunningApp:
    """A server with the application, and the events that the application has written."""

    def __init__(self, server: RunningServer, events: Path) -> None:
        self.server = server
        self._events = events

    def events(self, kind: str) -> Counter[str]:
        lines = [line.split() for line in self._events.read_text().splitlines()]
        return Counter(name for event, name in lines if event == kind)

    async def lose_clients(self) -> None:
        """Clients connect, and their connections are lost without a close frame."""
        clients = [await Cable.connect(self.server.cable, params={"name": name}) for name in ONCE_EACH]
        for client in clients:
            await client.welcomed()
        for client in clients:
            await client.cut()

    async def assert_one_event_for_each_session(self) -> None:
        await until(lambda: self.events("disconnect").total() >= CLIENTS, lambda: self.events("disconnect"))
        assert self.server.stop() == 0  # after that no more events can come
        assert self.events("disconnect") == ONCE_EACH
        assert self.events("connect") == ONCE_EACH


@contextmanager
def running_app(broker: tuple[str, ...], home: Path, sessions_ttl: str) -> Iterator[RunningApp]:
    (home / "channels.py").write_text(APP)
    events = home / "events"
    events.touch()
    app = ("--app", "channels:app", "--app_dir", str(home), "--disconnect_mode", "always", "--sessions_ttl", sessions_ttl)
    with running_server(*broker, *app, "--workers", "2", "--broadcast_key", "none", EVENTS=str(events)) as server:
        yield RunningApp(server, events)


@pytest.fixture(params=["memory", "redis", "nats"])
def broker(request: pytest.FixtureRequest) -> Iterator[tuple[str, ...]]:
    match request.param:
        case "redis":
            with redis_server() as redis:
                yield "--broker", "redis", "--redis_url", redis.url
        case "nats":
            with nats_server() as nats:
                yield "--broker", "nats", "--nats_servers", nats.url
        case _:
            yield ("--broker", "memory")


async def test_expired_session_is_reported_once(broker: tuple[str, ...], tmp_path: Path) -> None:
    with running_app(broker, tmp_path, sessions_ttl="2s") as running:
        await running.lose_clients()
        await running.assert_one_event_for_each_session()


async def test_session_ended_by_a_remote_disconnect_while_it_is_kept_is_reported_once(
    broker: tuple[str, ...], tmp_path: Path
) -> None:
    with running_app(broker, tmp_path, sessions_ttl="1h") as running:
        await running.lose_clients()
        await metrics_when(running.server, lambda now: now["sessions"] == 0)
        async with aiohttp.ClientSession(running.server.url) as http:
            for name in ONCE_EACH:
                identifier = json.dumps({"name": name}, separators=(",", ":"))
                command = {"command": "disconnect", "payload": {"identifier": identifier}}
                async with http.post("/_broadcast", json=command) as response:
                    assert response.status == 201, await response.text()
        await running.assert_one_event_for_each_session()
