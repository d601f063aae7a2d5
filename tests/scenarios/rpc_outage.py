"""A crowd of clients, and the application behind their server in a process of its own that can be killed and held.

The clients only listen and count; what they ask for and when is the scenario's.
"""

import asyncio
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from ropewalk.testing import application_events as events
from ropewalk.testing.application_orders import NAME, Order, seat
from tests.cable import Cable, Closed, Frame, identifier, kind
from tests.conformance.applications.rpc_process import RpcProcess, rpc_process
from tests.server import RunningServer, running_server

STREAM = "news"
LISTENING = seat(Order(streams=(STREAM,)))
OWN = identifier("the server's own")
TIMEOUT = 60.0
AT_ONCE = 50  # clients on their way in

FLAGS = ("--broadcast_key", "none", "--public_streams", "--rpc_restore", "--resume_patience", "60s")


class Guest:
    """`replies` are the kinds of answers by identifier, `heard` what came on the stream. `gone`: its connection has ended, and
    `goodbye` is the reason that was given before."""

    def __init__(self, cable: Cable) -> None:
        self.cable = cable
        self.replies: defaultdict[str, list[str]] = defaultdict(list)
        self.heard: list[str] = []
        self.pongs = 0
        self.gone = False
        self.goodbye = ""

    async def listen(self) -> None:
        try:
            while True:
                self._take(await self.cable.next())
        except Closed:
            self.gone = True

    async def ask(self, wanted: str) -> None:
        await self.cable.send(command="subscribe", identifier=wanted)

    async def ask_until_granted(self, wanted: str) -> int:
        """As a stubborn client would; how often it was rejected."""
        rejected = 0
        while True:
            self.replies[wanted].clear()
            await self.ask(wanted)
            await until(lambda: bool(self.replies[wanted]))
            if self.replies[wanted] == ["confirm_subscription"]:
                return rejected
            rejected += 1
            await asyncio.sleep(0.1)

    def _take(self, frame: Frame) -> None:
        match kind(frame):
            case "message":
                self.heard.append(frame["message"])
            case "pong":
                self.pongs += 1
            case "disconnect":
                self.goodbye = frame["reason"]
            case other:
                self.replies[frame["identifier"]].append(other)


class Deployment:
    """The application, the server before it, and the crowd in it."""

    def __init__(self, server: RunningServer, backend: RpcProcess, log: Path) -> None:
        self.server = server
        self.backend = backend
        self.guests: list[Guest] = []
        self._log = log
        self._published = 0

    async def publish(self, count: int) -> list[str]:
        """So many messages, one after another; what they say."""
        texts = [f"message {self._published + number}" for number in range(count)]
        self._published += count
        async with aiohttp.ClientSession() as http:
            for text in texts:
                body = {"stream": STREAM, "data": f'"{text}"'}
                async with http.post(f"{self.server.url}/_broadcast", json=body) as response:
                    assert response.status == 201, await response.text()
        return texts

    async def heard_by_all(self, texts: Sequence[str]) -> int:
        """Wait until every guest has these as the latest, in order; how many deliveries that were."""
        await until(lambda: all(guest.heard[-len(texts) :] == texts for guest in self.guests))
        return len(texts) * len(self.guests)

    async def health(self) -> tuple[int, list[str]]:
        async with aiohttp.ClientSession() as http, http.get(f"{self.server.url}/health") as response:
            body: dict[str, Any] = await response.json()
            return response.status, body.get("reasons", [])

    async def healthy(self) -> None:
        """Wait until it is."""
        deadline = time.monotonic() + TIMEOUT
        while (found := await self.health()) != (200, []):
            assert time.monotonic() < deadline, found
            await asyncio.sleep(0.05)

    def disconnect_calls(self) -> Counter[str]:
        """How often the application heard of the end of each session."""
        return Counter(event.sid for event in events.read(self._log) if event.kind == "disconnect")


async def until(fits: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not fits():
        assert time.monotonic() < deadline, f"not in {TIMEOUT} s"
        await asyncio.sleep(0.01)


async def answers(guests: Iterable[Guest], wanted: str) -> Counter[str]:
    """Wait until each has an answer; which, and how often. Whoever has two is counted twice."""
    asked = list(guests)
    await until(lambda: all(guest.replies[wanted] for guest in asked))
    return Counter(reply for guest in asked for reply in guest.replies[wanted])


@asynccontextmanager
async def deployment(kind: str, size: int, *flags: str) -> AsyncIterator[Deployment]:
    """A crowd that is connected and listens to the stream by leave of the application."""
    with tempfile.TemporaryDirectory() as home:
        log = Path(home) / "events.jsonl"
        with rpc_process(kind, log) as backend, running_server("--rpc_host", backend.address, *FLAGS, *flags) as server:
            deployment = Deployment(server, backend, log)
            deployment.guests = await _gathered(server, size)
            listening = [asyncio.create_task(guest.listen()) for guest in deployment.guests]
            try:
                await asyncio.gather(*(guest.ask(LISTENING) for guest in deployment.guests))
                assert await answers(deployment.guests, LISTENING) == {"confirm_subscription": size}
                yield deployment
            finally:
                for task in listening:
                    task.cancel()
                await asyncio.gather(*(guest.cable.cut() for guest in deployment.guests))


async def _gathered(server: RunningServer, size: int) -> list[Guest]:
    places = asyncio.Semaphore(AT_ONCE)

    async def arrive(number: int) -> Guest:
        async with places:
            cable = await Cable.connect(server.cable, params={NAME: f"guest {number}"})
            await cable.welcomed()
            return Guest(cable)

    return list(await asyncio.gather(*(arrive(number) for number in range(size))))
