"""The path of a message from a publisher through eight steps to its readers, each step observed from outside, in order.

The steps are those of ARCHITECTURE.md. Read it from top to bottom.
"""

import contextlib
import json
import sys
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

import aiohttp
from msgspec.structs import replace

import ropewalk
from ropewalk.app.process_role import ALONE, ProcessKind, Role, own_settings
from ropewalk.app.server import Server
from ropewalk.app.settings import load
from tests.cable import Cable, cable, identifier
from tests.metrics import metrics
from tests.server import Address, RunningServer, running_server

STREAM = "walk"
MAX_FILES = {"publish with the journal": 25, "publish with workers": 25, "connect and subscribe": 37}
BOUNDS = ("--public", "--max_conn", "9", "--max_http_conn", "9", "--shutdown_spread", "0")
OURS = Path(ropewalk.__file__).parent


async def test_message_passes_the_eight_steps() -> None:
    with running_server("--public", "--sse") as server:  # its own: it counts everything
        async with (
            aiohttp.ClientSession(server.url) as http,
            cable(server) as here,
            cable(server) as away,
            cable(server) as late,
        ):
            for client in (here, away):
                await client.subscribe(STREAM)
            await away.cut()
            at_rest = await metrics(server)

            position = await step_1_the_broadcaster_accepts_or_refuses_it(http)
            await step_2_the_broker_appends_a_batch_in_order(http, position)
            await step_3_the_backend_stores_it_at_a_position(http, position)
            await step_4_the_feed_carries_new_messages_only(http, position)
            await step_5_the_cursor_passes_each_message_once(server, at_rest)
            await step_6_the_hub_delivers_it_to_subscribers(here, position)
            await step_7_the_session_replays_missed_messages_once(server, away, late, position)
            await step_8_every_transport_carries_the_same_position(http, position)


async def step_1_the_broadcaster_accepts_or_refuses_it(http: aiohttp.ClientSession) -> dict[str, Any]:
    async with http.post("/_broadcast", json={"stream": STREAM, "data": None}) as response:
        assert response.status == 422
    # A number beyond the precision of a float, and irregular white space: the payload is not changed.
    async with http.post("/_broadcast", json={"stream": STREAM, "data": '{"n":  9007199254740993}', "uid": "w1"}) as response:
        assert response.status == 201
        (position,) = (await response.json())["publications"]
    assert position == {"stream": STREAM, "epoch": position["epoch"], "offset": 1}
    return dict(position)


async def step_2_the_broker_appends_a_batch_in_order(http: aiohttp.ClientSession, first: dict[str, Any]) -> None:
    batch = [{"stream": "elsewhere", "data": "1"}, {"stream": STREAM, "data": "2"}, {"stream": STREAM, "data": "3"}]
    async with http.post("/api/publish", json=batch) as response:
        receipts = (await response.json())["publications"]
    assert [(receipt["stream"], receipt["offset"]) for receipt in receipts] == [("elsewhere", 1), (STREAM, 2), (STREAM, 3)]
    assert receipts[1]["epoch"] == receipts[2]["epoch"] == first["epoch"]


async def step_3_the_backend_stores_it_at_a_position(http: aiohttp.ClientSession, first: dict[str, Any]) -> None:
    async with http.get("/api/streams") as response:
        listed = {stream["stream"]: stream for stream in (await response.json())["streams"]}
    assert listed[STREAM] == {"stream": STREAM, "epoch": first["epoch"], "tip": 3, "oldest": 1, "kept": 3}
    async with http.get(f"/api/streams/{STREAM}/history?limit=1") as response:
        page = await response.text()
    assert '"message":{"n":  9007199254740993}' in page


async def step_4_the_feed_carries_new_messages_only(http: aiohttp.ClientSession, first: dict[str, Any]) -> None:
    async with http.post("/api/publish", json={"stream": STREAM, "data": "again", "uid": "w1"}) as response:
        assert (await response.json())["publications"] == [{**first, "duplicate": True}]


async def step_5_the_cursor_passes_each_message_once(server: RunningServer, before: dict[str, float]) -> None:
    after = await metrics(server)
    grown = {name: after[name] - before[name] for name in ("publications_total", "deliveries_total", "streams_listened")}
    assert grown == {"publications_total": 4, "deliveries_total": 3, "streams_listened": 0}


async def step_6_the_hub_delivers_it_to_subscribers(here: Cable, first: dict[str, Any]) -> None:
    frame = await here.expect("message", stream_id=STREAM, epoch=first["epoch"], offset=1)
    assert frame["identifier"] == identifier(STREAM)
    assert frame["message"] == {"n": 9007199254740993}
    assert await here.messages(2) == [2, 3]
    await here.quiet()


async def step_7_the_session_replays_missed_messages_once(
    server: RunningServer, away: Cable, late: Cable, first: dict[str, Any]
) -> None:
    async with cable(server, sid=away.sid) as back:  # resumed: it knew nothing of the stream yet
        assert [frame["offset"] for frame in await back.ask_history(STREAM)] == [1, 2, 3]
        await back.quiet()
    known = {"streams": {STREAM: {"epoch": first["epoch"], "offset": 1}}}  # joined: it knew the first
    assert [frame["offset"] for frame in await late.subscribe(STREAM, history=known)] == [2, 3]
    await late.quiet()


async def step_8_every_transport_carries_the_same_position(http: aiohttp.ClientSession, first: dict[str, Any]) -> None:
    last_seen = {"Last-Event-ID": f"1/{first['epoch']}/{STREAM}"}
    async with http.get("/events", params={"stream": STREAM, "raw": "1"}, headers=last_seen) as events:
        assert await _event(events) == (2, f"2/{first['epoch']}/{STREAM}")
        assert await _event(events) == (3, f"3/{first['epoch']}/{STREAM}")


async def _event(events: aiohttp.ClientResponse) -> tuple[Any, str]:
    """Data and id of the next event."""
    fields: dict[str, str] = {}
    while line := (await events.content.readline()).decode().rstrip("\n"):
        name, _, value = line.partition(": ")
        fields[name] = value
    return json.loads(fields["data"]), fields["id"]


# --- how many files it walks through ----------------------------------------------------------------------------------


class CalledFiles:
    """`seen` has the files of the server with a function that was called, in any thread, since it was cleared."""

    def __init__(self) -> None:
        self.seen: set[str] = set()

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            path = frame.f_code.co_filename
            if path.startswith(f"{OURS}/"):
                self.seen.add(path.removeprefix(f"{OURS}/"))

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Before the server starts: a thread that runs already would not be watched."""
        before = sys.getprofile()
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        try:
            yield
        finally:
            sys.setprofile(before)
            threading.setprofile(None)


@contextlib.asynccontextmanager
async def server_in_this_process(*flags: str, workers: bool = False) -> AsyncIterator[Address]:
    """With `workers`, the store process and one worker of a server with two run in this process too."""
    settings = load(["--config_path=", "--host", "127.0.0.1", "--port", "0", *BOUNDS, *flags], {})
    async with contextlib.AsyncExitStack() as stack:
        roles = [ALONE]
        if workers:
            role = Role(directory=stack.enter_context(TemporaryDirectory()), host="127.0.0.1", workers=2)
            roles = [replace(role, kind=ProcessKind.STORE), replace(role, kind=ProcessKind.WORKER, number=1)]
        for role in roles:
            own = own_settings(role, settings)
            server = Server(own, lambda own=own: own, role, settings)  # type: ignore[misc]  # mypy cannot infer the lambda
            await server.start()
            stack.push_async_callback(server.stop)
        yield Address(server.addresses[0])


async def walk_of_a_publication(server: Address, called: CalledFiles) -> set[str]:
    """The files called for each of several publications, from the request, on a connection that is open already, to the frame
    that a subscriber receives."""
    walks: list[set[str]] = []
    async with aiohttp.ClientSession(server.url) as http, cable(server) as here:
        await here.subscribe(STREAM)
        for number in range(5):
            called.seen.clear()
            async with http.post("/_broadcast", json={"stream": STREAM, "data": "1", "uid": f"u{number}"}) as response:
                assert response.status == 201
            await here.expect("message", offset=number + 1)
            walks.append(set(called.seen))
    # Single walks also have files of the first connection, and of timers that ran meanwhile.
    return set.intersection(*walks)


def require_few(files: set[str], most: int, steps: Sequence[str]) -> None:
    for step in steps:
        assert any(file.endswith(f"{step}.py") for file in files), sorted(files)
    assert len(files) <= most, sorted(files)


async def test_publish_with_the_journal_calls_few_files(tmp_path: Path) -> None:
    called = CalledFiles()
    with called.watched():
        async with server_in_this_process("--data_dir", str(tmp_path), "--durability", "journal") as server:
            files = await walk_of_a_publication(server, called)
    require_few(files, MAX_FILES["publish with the journal"], ("endpoints/publish", "arrow/writer", "engine/hub"))


async def test_publish_with_workers_calls_few_files() -> None:
    """In the worker that receives the request and the subscriber, and in the store process."""
    called = CalledFiles()
    with called.watched():
        async with server_in_this_process("--workers", "2", workers=True) as server:
            files = await walk_of_a_publication(server, called)
    require_few(files, MAX_FILES["publish with workers"], ("endpoints/publish", "workers/server", "workers/link", "engine/hub"))


async def test_connect_and_subscribe_calls_few_files() -> None:
    """From the accept of a WebSocket connection to the confirmation of a subscription."""
    called, walks = CalledFiles(), list[set[str]]()
    with called.watched():
        async with server_in_this_process() as server:
            for _ in range(5):
                called.seen.clear()
                async with cable(server) as client:
                    await client.subscribe(STREAM)
                    walks.append(set(called.seen))
    files = set.intersection(*walks)
    require_few(files, MAX_FILES["connect and subscribe"], ("endpoints/websocket", "engine/session", "engine/joins"))
