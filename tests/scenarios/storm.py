"""The storm: publishers that write, and clients that are cut off again and again and come back in every way a client can.

Each client checks every message as it comes: the next offset of its stream and no other, whatever happened to the connection.
"""

import asyncio
import json
import random
from collections import Counter
from typing import Any

import aiohttp

from tests.cable import MESSAGE, Cable, Closed, Frame, identifier, kind
from tests.server import RunningServer

STREAMS = [f"storm/{number}" for number in range(20)]
PUBLISHERS = 4
CLIENTS = 200
REQUESTS = 100  # of each publisher

# How a client comes back: with its sid at once; after the publishers have ended; with a sid nobody knows; on a second
# connection while the server still believes in the first one.
RETURNS = ("at once", "at once", "late", "sid lost", "taken over")


class Sea:
    """What the publishers have written so far, by stream: the payload of offset n at place n - 1."""

    def __init__(self) -> None:
        self.written: dict[str, list[str]] = {stream: [] for stream in STREAMS}
        self.calm = asyncio.Event()
        self.counts: Counter[str] = Counter()

    def note(self, payload: str, receipt: dict[str, Any]) -> None:
        """Receipts of one stream may reach different publishers out of order; places are filled as they come."""
        line = self.written[receipt["stream"]]
        line.extend([""] * (receipt["offset"] - len(line)))
        assert line[receipt["offset"] - 1] in ("", payload), f"offset given twice: {receipt}"
        line[receipt["offset"] - 1] = payload


class StormPublisher:
    """Writes single publications and batches; some carry a uid and are sent again, as after a lost answer."""

    def __init__(self, name: str, server: RunningServer, sea: Sea, chance: random.Random) -> None:
        self._name = name
        self._address = f"{server.url}/_broadcast"
        self._sea = sea
        self._chance = chance
        self._written = 0

    async def run(self) -> None:
        async with aiohttp.ClientSession() as http:
            for _ in range(REQUESTS):
                batch = [self._publication() for _ in range(self._chance.choice((1, 1, 1, 3, 10)))]
                receipts = await self._send(http, batch)
                for publication, receipt in zip(batch, receipts, strict=True):
                    self._sea.note(json.loads(publication["data"]), receipt)
                if batch[0].get("uid") and self._chance.random() < 0.5:
                    await self._retry(http, batch[:1], receipts[0])

    def _publication(self) -> dict[str, str]:
        self._written += 1
        payload = f"{self._name}/{self._written}"
        uid = {"uid": payload} if self._chance.random() < 0.3 else {}
        return {"stream": self._chance.choice(STREAMS), "data": json.dumps(payload), **uid}

    async def _send(self, http: aiohttp.ClientSession, batch: list[dict[str, str]]) -> list[dict[str, Any]]:
        async with http.post(self._address, json=batch if len(batch) > 1 else batch[0]) as response:
            assert response.status == 201, await response.text()
            publications: list[dict[str, Any]] = (await response.json())["publications"]
            return publications

    async def _retry(self, http: aiohttp.ClientSession, batch: list[dict[str, str]], first: dict[str, Any]) -> None:
        self._sea.counts["retries"] += 1
        assert await self._send(http, batch) == [{**first, "duplicate": True}]


class StormClient:
    """`got` is the last offset received of each stream it stays subscribed to."""

    def __init__(self, server: RunningServer, sea: Sea, chance: random.Random) -> None:
        self._server = server
        self._sea = sea
        self._chance = chance
        self._sid = ""
        self._epochs: dict[str, str] = {}
        self._restored: set[str] = set()
        self.got = dict.fromkeys(chance.sample(STREAMS, chance.randint(2, 5)), 0)
        self.left = chance.choice(sorted(self.got)) if chance.random() < 0.1 else ""

    async def run(self) -> None:
        """Until everything is there, over as many connections as it takes."""
        old: Cable | None = None
        while not self._done():
            connection = await Cable.connect(self._server.cable, sid=self._sid)
            try:
                await self._arrive(connection)
                await self._listen(connection, self._chance.randint(5, 120))
            except Closed:
                self._sea.counts["closed by the server"] += 1
            if old is not None:
                await old.cut()
            old = connection
            if not self._done():
                await self._fall(connection)
        assert old is not None
        await old.quiet()  # nothing beyond, nothing twice
        await old.close()

    def _done(self) -> bool:
        return self._sea.calm.is_set() and all(self._complete(stream) for stream in self.got)

    def _complete(self, stream: str) -> bool:
        return self.got[stream] == len(self._sea.written[stream])

    async def _arrive(self, connection: Cable) -> None:
        welcome = await connection.expect("welcome")
        self._sid = welcome["sid"]
        self._restored = set(welcome.get("restored_ids", ()))
        if welcome.get("restored"):
            self._sea.counts["restores"] += 1
        for stream in self.got:
            command = "history" if identifier(stream) in self._restored else "subscribe"
            await connection.send(command=command, identifier=identifier(stream), history=self._request(stream))

    def _request(self, stream: str) -> Frame:
        position = {"epoch": self._epochs.get(stream), "offset": self.got[stream]}
        return {"since": 1, "streams": {stream: position} if self.got[stream] else {}}

    async def _listen(self, connection: Cable, frames: int) -> None:
        """So many frames, or until all is there."""
        while frames > 0 and not self._done():
            frame = await self._next(connection)
            if frame is None:
                continue
            frames -= 1
            match kind(frame):
                case "message":
                    self._receive(frame)
                case "confirm_history":
                    self._sea.counts["replays"] += 1
                case "confirm_subscription" | "disconnect":
                    pass
                case other:
                    raise AssertionError(f"{other} in a storm where nothing is trimmed: {frame}")
        if self.left in self.got and self._chance.random() < 0.3:
            await connection.send(command="unsubscribe", identifier=identifier(self.left))
            del self.got[self.left]

    async def _next(self, connection: Cable) -> Frame | None:
        """None when the storm was found calm meanwhile: then a client that has everything need not wait for a message."""
        return await connection.next()

    def _receive(self, frame: Frame) -> None:
        stream, offset = frame["stream_id"], frame["offset"]
        if stream not in self.got:
            assert stream == self.left, frame
            return
        assert offset == self.got[stream] + 1, f"{stream}: {offset} after {self.got[stream]}"
        assert self._epochs.setdefault(stream, frame["epoch"]) == frame["epoch"]
        self.got[stream] = offset

    async def _fall(self, connection: Cable) -> None:
        way = self._chance.choice(RETURNS)
        self._sea.counts["cuts"] += 1
        if way != "taken over":
            await connection.cut()
        if way == "sid lost":
            self._sid = "nobody-knows-this-one"
        if way == "late":
            await self._sea.calm.wait()
