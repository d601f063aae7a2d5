"""Many clients of a server, and its application in another process that can be killed and held.

The clients only receive and count. The scenario sends their commands.
"""

import asyncio
import tempfile
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from ropewalk.testing import application_events as events
from ropewalk.testing.application_orders import NAME, Order, seat
from tests.cable import Cable, Closed, Frame, identifier, kind
from tests.conformance.applications.rpc_process import RpcProcess, rpc_process
from tests.server import RunningServer, running_server
from tests.waiting import until

STREAM = "news"
LISTENING = seat(Order(streams=(STREAM,)))
OWN = identifier("the server's own")
MAX_CONNECTING = 50

FLAGS = ("--broadcast_key", "none", "--public_streams", "--rpc_restore", "--resume_timeout", "10m")


class Guest:
    """A client.

    `replies` has the kinds of answers by identifier, `messages` those of the stream. `closed`: the connection has ended,
    and `reason` is that of the disconnect message before it.
    """

    def __init__(self, cable: Cable) -> None:
        self.cable = cable
        self.replies: defaultdict[str, list[str]] = defaultdict(list)
        self.messages: list[str] = []
        self.pongs = 0
        self.closed = False
        self.reason = ""

    async def listen(self) -> None:
        try:
            while True:
                self._take(await self.cable.next())
        except Closed:
            self.closed = True

    async def ask(self, wanted: str) -> None:
        await self.cable.send(command="subscribe", identifier=wanted)

    async def ask_until_granted(self, wanted: str) -> int:
        """Repeat the subscribe; returns how often it was rejected."""
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
                self.messages.append(frame["message"])
            case "pong":
                self.pongs += 1
            case "disconnect":
                self.reason = frame["reason"]
            case other:
                self.replies[frame["identifier"]].append(other)


class Deployment:
    """The application, the server, and its clients."""

    def __init__(self, server: RunningServer, backend: RpcProcess, log: Path) -> None:
        self.server = server
        self.backend = backend
        self.guests: list[Guest] = []
        self._log = log
        self._published = 0

    async def publish(self, count: int) -> list[str]:
        """Publish so many messages, one after another; returns their texts."""
        texts = [f"message {self._published + number}" for number in range(count)]
        self._published += count
        async with aiohttp.ClientSession() as http:
            for text in texts:
                body = {"stream": STREAM, "data": f'"{text}"'}
                async with http.post(f"{self.server.url}/_broadcast", json=body) as response:
                    assert response.status == 201, await response.text()
        return texts

    async def received_by_all(self, texts: Sequence[str]) -> int:
        """Wait until every client received these last, in order; returns the number of deliveries."""
        await until(lambda: all(guest.messages[-len(texts) :] == texts for guest in self.guests))
        return len(texts) * len(self.guests)

    async def health(self) -> tuple[int, list[str]]:
        async with aiohttp.ClientSession() as http, http.get(f"{self.server.url}/health") as response:
            body: dict[str, Any] = await response.json()
            return response.status, body.get("reasons", [])

    def disconnect_calls(self) -> Counter[str]:
        return disconnect_calls(self._log)


def disconnect_calls(log: Path) -> Counter[str]:
    """Disconnect calls that the application received, by session."""
    return Counter(event.sid for event in events.read(log) if event.kind == "disconnect")


async def answers(guests: Iterable[Guest], wanted: str) -> Counter[str]:
    """Wait until each has an answer; returns the number of answers by kind."""
    asked = list(guests)
    await until(lambda: all(guest.replies[wanted] for guest in asked))
    return Counter(reply for guest in asked for reply in guest.replies[wanted])


@asynccontextmanager
async def deployment(kind: str, size: int, *flags: str) -> AsyncIterator[Deployment]:
    """Clients that are connected and subscribed to the stream by a channel of the application."""
    with tempfile.TemporaryDirectory() as home:
        log = Path(home) / "events.jsonl"
        with rpc_process(kind, log) as backend, running_server("--rpc_host", backend.address, *FLAGS, *flags) as server:
            deployment = Deployment(server, backend, log)
            deployment.guests = await _connect_all(server, size)
            listening = [asyncio.create_task(guest.listen()) for guest in deployment.guests]
            try:
                await asyncio.gather(*(guest.ask(LISTENING) for guest in deployment.guests))
                assert await answers(deployment.guests, LISTENING) == {"confirm_subscription": size}
                yield deployment
            finally:
                for task in listening:
                    task.cancel()
                await asyncio.gather(*(guest.cable.cut() for guest in deployment.guests))


async def _connect_all(server: RunningServer, size: int) -> list[Guest]:
    places = asyncio.Semaphore(MAX_CONNECTING)

    async def arrive(number: int) -> Guest:
        async with places:
            cable = await Cable.connect(server.cable, params={NAME: f"guest {number}"})
            await cable.welcomed()
            return Guest(cable)

    return list(await asyncio.gather(*(arrive(number) for number in range(size))))
