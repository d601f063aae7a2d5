"""The storm: publishers that write, and clients that are cut off again and again and come back in every way a client can.

Each client checks every message as it comes: the next offset of its stream and no other, whatever happened to the connection.
What is at a position is kept as text: the message itself where it is a string, its JSON otherwise.
"""

import asyncio
import json
import os
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import aiohttp

from tests.cable import MESSAGE, Cable, Closed, Frame, identifier, kind
from tests.server import Address

STREAMS = [f"storm/{number}" for number in range(20)]
PUBLISHERS = 4
CLIENTS = int(os.environ.get("STORM_CLIENTS") or 200)
REQUESTS = int(os.environ.get("STORM_REQUESTS") or 100)  # of each publisher
PAUSE = 0.05  # seconds at most between two requests, so that messages come all through the storm

END = "the end"  # the last message of every stream, by which a client knows that it has everything

# How a client comes back: with its sid at once; after the publishers have ended; with a sid nobody knows; on a second
# connection while the server still believes in the first one.
RETURNS = ("at once", "at once", "late", "sid lost", "taken over")


def as_text(message: object) -> str:
    return message if isinstance(message, str) else json.dumps(message, separators=(",", ":"))


class Sea:
    """What the publishers have written so far, by stream: the payload of offset n at place n - 1. `epochs`: what everybody was
    told, publishers and clients of every kind."""

    def __init__(self) -> None:
        self.written: dict[str, list[str]] = {stream: [] for stream in STREAMS}
        self.epochs: dict[str, str] = {}
        self.calm = asyncio.Event()
        self.counts: Counter[str] = Counter()

    def note(self, payload: str, stream: str, epoch: str, offset: int) -> None:
        """Receipts of one stream may reach different publishers out of order; places are filled as they come."""
        self.told_epoch(stream, epoch)
        line = self.written[stream]
        line.extend([""] * (offset - len(line)))
        assert line[offset - 1] in ("", payload), f"offset given twice: {stream} {offset}"
        line[offset - 1] = payload

    def told_epoch(self, stream: str, epoch: str) -> None:
        assert self.epochs.setdefault(stream, epoch) == epoch, f"{stream}: another epoch"


class StormPublisher:
    """Writes single publications and batches; some carry a uid and are sent again, as after a lost answer."""

    def __init__(self, name: str, server: Address, sea: Sea, chance: random.Random) -> None:
        self._name = name
        self._server = server
        self._sea = sea
        self._chance = chance
        self._written = 0

    async def run(self) -> None:
        async with aiohttp.ClientSession() as http:
            for _ in range(REQUESTS):
                batch = [self._publication() for _ in range(self._chance.choice((1, 1, 1, 3, 10)))]
                receipts = await self._send(http, batch)
                for publication, receipt in zip(batch, receipts, strict=True):
                    self._sea.note(json.loads(publication["data"]), receipt["stream"], receipt["epoch"], receipt["offset"])
                if batch[0].get("uid") and self._chance.random() < 0.5:
                    await self._retry(http, batch[:1], receipts[0])
                await asyncio.sleep(self._chance.random() * PAUSE)

    async def end(self) -> None:
        batch = [{"stream": stream, "data": json.dumps(END)} for stream in STREAMS]
        async with aiohttp.ClientSession() as http:
            for receipt in await self._send(http, batch):
                self._sea.note(END, receipt["stream"], receipt["epoch"], receipt["offset"])

    def _publication(self) -> dict[str, str]:
        self._written += 1
        name = f"{self._name}/{self._written}"
        # Long enough for a stream's history not to fit into what is buffered for one connection.
        payload = name + "." * self._chance.choice((0, 0, 1000, 5000))
        uid = {"uid": name} if self._chance.random() < 0.3 else {}
        return {"stream": self._chance.choice(STREAMS), "data": json.dumps(payload), **uid}

    async def _send(self, http: aiohttp.ClientSession, batch: list[dict[str, str]]) -> list[dict[str, Any]]:
        async with http.post(f"{self._server.url}/_broadcast", json=batch if len(batch) > 1 else batch[0]) as response:
            assert response.status == 201, await response.text()
            publications: list[dict[str, Any]] = (await response.json())["publications"]
            return publications

    async def _retry(self, http: aiohttp.ClientSession, batch: list[dict[str, str]], first: dict[str, Any]) -> None:
        self._sea.counts["retries"] += 1
        assert await self._send(http, batch) == [{**first, "duplicate": True}]


class StormClient:
    """`got` holds what it received, in order, of each stream it stays subscribed to; `left` is one it gives up on the way."""

    def __init__(self, server: Address, sea: Sea, chance: random.Random) -> None:
        self._server = server
        self._sea = sea
        self._chance = chance
        self._sid = ""
        self.got: dict[str, list[str]] = {stream: [] for stream in chance.sample(STREAMS, chance.randint(2, 5))}
        self.left = chance.choice(sorted(self.got)) if chance.random() < 0.1 else ""

    async def run(self) -> None:
        """Until everything is there, over as many connections as it takes; and it is what was published."""
        former: Cable | None = None
        while True:
            connection = await Cable.connect(self._server.cable, sid=self._sid)
            await self._visit(connection)
            if former is not None:
                await former.cut()
            former = connection
            if self._done():
                break
            await self._fall(connection)
        await self._nothing_more(connection)
        await connection.close()
        await self._sea.calm.wait()
        for stream, payloads in self.got.items():
            assert payloads == self._sea.written[stream], f"{stream}: not what was published"

    def _done(self) -> bool:
        return all(payloads[-1:] == [END] for payloads in self.got.values())

    async def _visit(self, connection: Cable) -> None:
        try:
            await self._arrive(connection)
            await self._listen(connection, self._chance.randint(5, 120))
        except Closed:
            self._sea.counts["closed by the server"] += 1

    async def _arrive(self, connection: Cable) -> None:
        welcome = await connection.expect("welcome")
        self._sid = welcome["sid"]
        self._sea.counts["restores"] += welcome.get("restored", False)
        restored = welcome.get("restored_ids", ())
        for stream in self.got:
            command = "history" if identifier(stream) in restored else "subscribe"
            await connection.send(command=command, identifier=identifier(stream), history=self._request(stream))

    def _request(self, stream: str) -> Frame:
        if not self.got[stream]:
            return {"since": 1}
        return {"streams": {stream: {"epoch": self._sea.epochs[stream], "offset": len(self.got[stream])}}}

    async def _listen(self, connection: Cable, frames: int) -> None:
        """So many frames, or until all is there."""
        while frames > 0 and not self._done():
            self._take(await connection.next())
            frames -= 1
        if self.left in self.got and self._chance.random() < 0.3:
            await connection.send(command="unsubscribe", identifier=identifier(self.left))
            del self.got[self.left]

    def _take(self, frame: Frame) -> None:
        match kind(frame):
            case "message" if frame["stream_id"] in self.got:
                self._message(frame["stream_id"], frame["epoch"], frame["offset"], as_text(frame["message"]))
            case "message":
                assert frame["stream_id"] == self.left, frame
            case "confirm_history":
                self._sea.counts["replays"] += 1
            case "confirm_subscription":
                pass
            case other:
                raise AssertionError(f"{other} in a storm where nothing is trimmed: {frame}")

    def _message(self, stream: str, epoch: str, offset: int, payload: str) -> None:
        received = self.got[stream]
        assert offset == len(received) + 1, f"{stream}: offset {offset} after {len(received)}"
        self._sea.told_epoch(stream, epoch)
        received.append(payload)

    async def _fall(self, connection: Cable) -> None:
        way = self._chance.choice(RETURNS)
        self._sea.counts["cuts"] += 1
        if way != "taken over":
            await connection.cut()
        if way == "sid lost":
            self._sid = "nobody-knows-this-one"
        if way == "late":
            await self._sea.calm.wait()

    async def _nothing_more(self, connection: Cable) -> None:
        """What a ping's answer overtakes would be something twice."""
        await connection.send(command="ping")
        while kind(frame := await connection.next()) != "pong":
            assert kind(frame) != MESSAGE or frame["stream_id"] == self.left, frame


class Runs(Protocol):
    async def run(self) -> None: ...


AnyClient = Callable[[Address, Sea, random.Random], Runs]
AnyPublisher = Callable[[str, Address, Sea, random.Random], Runs]


async def storm(
    server: Address, seed: int, count: int, clients: Sequence[AnyClient], publishers: Sequence[AnyPublisher]
) -> Sea:
    """Let it rage, with so many clients, as many of each kind; returns when every client has everything."""
    sea = Sea()
    chances = random.Random(seed)

    def chance() -> random.Random:
        return random.Random(chances.random())

    here = [clients[number % len(clients)](server, sea, chance()) for number in range(count)]
    writing = [publishers[number % len(publishers)](f"p{number}", server, sea, chance()) for number in range(PUBLISHERS)]
    async with asyncio.TaskGroup() as raging:
        for each in here:
            raging.create_task(each.run())
        await asyncio.gather(*(publisher.run() for publisher in writing))
        await StormPublisher("last", server, sea, chance()).end()
        sea.calm.set()
    return sea
