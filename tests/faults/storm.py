"""The reconnect storm: publishers, and clients whose connections are cut again and again and that return in every way.

Each client checks each message when it arrives: its offset follows the last one of its stream. Messages are compared as text:
a string as it is, anything else as JSON.
"""

import asyncio
import json
import os
import random
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import aiohttp

from tests.cable import MESSAGE, Cable, Closed, Frame, identifier, kind
from tests.server import Address

T = TypeVar("T")

STREAMS = [f"storm/{number}" for number in range(20)]
PUBLISHERS = 4
CLIENTS = int(os.environ.get("STORM_CLIENTS") or 200)
REQUESTS = int(os.environ.get("STORM_REQUESTS") or 100)  # of each publisher
PAUSE = 0.05  # maximum seconds between two requests, so that messages are published during the whole storm
FLAGS = (
    *("--public", "--sse", "--history_limit", "100000", "--resume_timeout", "60s", "--command_rate", "0"),
    *("--app", "tests.faults.storm_channels:app", "--app_dir", str(Path(__file__).parents[2])),
)

END = "the end"  # the last message of each stream: a client that has it is complete

# How a client returns: with its sid at once; after the publishers have ended; with an unknown sid; on a second connection
# before the first one is closed.
RETURNS = ("at once", "at once", "late", "sid lost", "taken over")


def as_text(message: object) -> str:
    return message if isinstance(message, str) else json.dumps(message, separators=(",", ":"))


class StormRecord:
    """The messages of all publishers by stream, the payload of offset n at index n - 1, and the epochs that all must see."""

    def __init__(self) -> None:
        self.written: dict[str, list[str]] = {stream: [] for stream in STREAMS}
        self.epochs: dict[str, str] = {}
        self.complete = asyncio.Event()
        self.counts: Counter[str] = Counter()

    def add(self, payload: str, stream: str, epoch: str, offset: int) -> None:
        """Publishers may get the receipts of one stream out of order, so an earlier offset may still be empty."""
        self.check_epoch(stream, epoch)
        line = self.written[stream]
        line.extend([""] * (offset - len(line)))
        assert line[offset - 1] in ("", payload), f"offset given twice: {stream} {offset}"
        line[offset - 1] = payload

    def check_epoch(self, stream: str, epoch: str) -> None:
        assert self.epochs.setdefault(stream, epoch) == epoch, f"{stream}: another epoch"


async def connected(connect: Callable[[], Awaitable[T]]) -> T:
    """Connect again where the server did not wait: on a busy machine this process may send a request too late."""
    while True:
        try:
            return await connect()
        except aiohttp.ClientConnectorError:
            raise
        except aiohttp.ClientConnectionError:
            continue


class StormPublisher:
    """Publishes single messages and batches. Some have a uid and are sent again, as after a lost response."""

    share_of_uids = 0.3

    def __init__(self, name: str, server: Address, record: StormRecord, chance: random.Random) -> None:
        self._name = name
        self._server = server
        self._record = record
        self._chance = chance
        self._written = 0

    async def run(self) -> None:
        async with aiohttp.ClientSession() as http:
            for _ in range(REQUESTS):
                batch = [self._publication() for _ in range(self._chance.choice((1, 1, 1, 3, 10)))]
                receipts = await self._send(http, batch)
                for publication, receipt in zip(batch, receipts, strict=True):
                    self._record.add(json.loads(publication["data"]), receipt["stream"], receipt["epoch"], receipt["offset"])
                if batch[0].get("uid") and self._chance.random() < 0.5:
                    await self._retry(http, batch[:1], receipts[0])
                await asyncio.sleep(self._chance.random() * PAUSE)

    async def end(self) -> None:
        batch = [{"stream": stream, "data": json.dumps(END)} for stream in STREAMS]
        async with aiohttp.ClientSession() as http:
            for receipt in await self._send(http, batch):
                self._record.add(END, receipt["stream"], receipt["epoch"], receipt["offset"])

    def _publication(self) -> dict[str, str]:
        self._written += 1
        name = f"{self._name}/{self._written}"
        # Long enough that the history of a stream exceeds the buffers of one connection.
        payload = name + "." * self._chance.choice((0, 0, 1000, 5000))
        uid = {"uid": name} if self._chance.random() < self.share_of_uids else {}
        return {"stream": self._chance.choice(STREAMS), "data": json.dumps(payload), **uid}

    async def _send(self, http: aiohttp.ClientSession, batch: list[dict[str, str]]) -> list[dict[str, Any]]:
        async with http.post(f"{self._server.url}/_broadcast", json=batch if len(batch) > 1 else batch[0]) as response:
            assert response.status == 201, await response.text()
            publications: list[dict[str, Any]] = (await response.json())["publications"]
            return publications

    async def _retry(self, http: aiohttp.ClientSession, batch: list[dict[str, str]], first: dict[str, Any]) -> None:
        self._record.counts["retries"] += 1
        assert await self._send(http, batch) == [{**first, "duplicate": True}]


class StormClient:
    """`received` has the messages of each subscribed stream. `left` is a stream that it unsubscribes from on the way."""

    def __init__(self, server: Address, record: StormRecord, chance: random.Random) -> None:
        self._server = server
        self._record = record
        self._chance = chance
        self._sid = ""
        self.received: dict[str, list[str]] = {stream: [] for stream in chance.sample(STREAMS, chance.randint(2, 5))}
        self.left = chance.choice(sorted(self.received)) if chance.random() < 0.1 else ""

    async def run(self) -> None:
        """Reconnect until all messages are received, and compare them with the published ones."""
        former: Cable | None = None
        while True:
            connection = await connected(lambda: Cable.connect(self._server.cable, sid=self._sid))
            await self._visit(connection)
            if former is not None:
                await former.cut()
            former = connection
            if self._done():
                break
            await self._disconnect(connection)
        await self._expect_nothing_more(connection)
        await connection.close()
        await self._record.complete.wait()
        for stream, payloads in self.received.items():
            assert payloads == self._record.written[stream], f"{stream}: differs from the published messages"

    def _done(self) -> bool:
        return all(payloads[-1:] == [END] for payloads in self.received.values())

    async def _visit(self, connection: Cable) -> None:
        try:
            await self._resume(connection)
            await self._listen(connection, self._chance.randint(5, 120))
        except Closed:
            self._record.counts["closed by the server"] += 1

    async def _resume(self, connection: Cable) -> None:
        welcome = await connection.expect("welcome")
        self._sid = welcome["sid"]
        self._record.counts["restores"] += welcome.get("restored", False)
        restored = welcome.get("restored_ids", ())
        for stream in self.received:
            command = "history" if identifier(stream) in restored else "subscribe"
            await connection.send(command=command, identifier=identifier(stream), history=self._request(stream))

    def _request(self, stream: str) -> Frame:
        if not self.received[stream]:
            return {"since": 1}
        return {"streams": {stream: {"epoch": self._record.epochs[stream], "offset": len(self.received[stream])}}}

    async def _listen(self, connection: Cable, frames: int) -> None:
        """Read this many frames, or until all messages are received."""
        while frames > 0 and not self._done():
            self._take(await connection.next())
            frames -= 1
        if self.left in self.received and self._chance.random() < 0.3:
            await connection.send(command="unsubscribe", identifier=identifier(self.left))
            del self.received[self.left]

    def _take(self, frame: Frame) -> None:
        match kind(frame):
            case "message" if frame["stream_id"] in self.received:
                self._message(frame["stream_id"], frame["epoch"], frame["offset"], as_text(frame["message"]))
            case "message":
                assert frame["stream_id"] == self.left, frame
            case "confirm_history":
                self._record.counts["replays"] += 1
            case "confirm_subscription":
                pass
            case other:
                raise AssertionError(f"unexpected {other}: {frame}")

    def _message(self, stream: str, epoch: str, offset: int, payload: str) -> None:
        received = self.received[stream]
        assert offset == len(received) + 1, f"{stream}: offset {offset} after {len(received)}"
        self._record.check_epoch(stream, epoch)
        received.append(payload)

    async def _disconnect(self, connection: Cable) -> None:
        way = self._chance.choice(RETURNS)
        self._record.counts["cuts"] += 1
        if way != "taken over":
            await connection.cut()
        if way == "sid lost":
            self._sid = "unknown"
        if way == "late":
            await self._record.complete.wait()

    async def _expect_nothing_more(self, connection: Cable) -> None:
        """A message before the response to a ping would be a duplicate."""
        await connection.send(command="ping")
        while kind(frame := await connection.next()) != "pong":
            assert kind(frame) != MESSAGE or frame["stream_id"] == self.left, frame


class Runs(Protocol):
    async def run(self) -> None: ...


AnyClient = Callable[[Address, StormRecord, random.Random], Runs]
AnyPublisher = Callable[[str, Address, StormRecord, random.Random], Runs]


async def storm(
    server: Address, seed: int, count: int, clients: Sequence[AnyClient], publishers: Sequence[AnyPublisher]
) -> StormRecord:
    """Run `count` clients, the same number of each kind, until each has all messages."""
    record = StormRecord()
    chances = random.Random(seed)

    def chance() -> random.Random:
        return random.Random(chances.random())

    running = [clients[number % len(clients)](server, record, chance()) for number in range(count)]
    publishing = [publishers[number % len(publishers)](f"p{number}", server, record, chance()) for number in range(PUBLISHERS)]
    async with asyncio.TaskGroup() as tasks:
        for each in running:
            tasks.create_task(each.run())
        await asyncio.gather(*(publisher.run() for publisher in publishing))
        await StormPublisher("last", server, record, chance()).end()
        record.complete.set()
    return record


def new_seed() -> int:
    """Printed, so that the storm can be repeated."""
    seed = int(os.environ.get("STORM_SEED") or secrets.randbelow(10**9))
    print(f"\nSTORM_SEED={seed}")
    return seed


def all_counted(found: dict[str, float], record: StormRecord) -> bool:
    """Whether the metrics include the figures of all workers, which arrive a moment later."""
    counted = found["publications_duplicate_total"] >= record.counts["retries"]
    return counted and found["sessions_restored_total"] >= record.counts["restores"] and found["sessions"] == 0


def check_counts(record: StormRecord, found: dict[str, float], count: int) -> None:
    """Compare the metrics with the counts of the clients."""
    written = sum(len(payloads) for payloads in record.written.values())
    print(f"  {count} clients, {written} messages; counted by the clients:", dict(sorted(record.counts.items())))
    shown = ("sessions_restored", "restores_missed", "replays", "replayed_messages", "deliveries")
    print("  counted by the server:", {name: int(found[f"{name}_total"]) for name in shown})
    assert record.counts["cuts"] > count
    retries, repeats = record.counts["retries"], record.counts["repeats"]  # a repeat may arrive first
    assert 0 < retries <= found["publications_duplicate_total"] <= retries + repeats
    assert [name for name, value in found.items() if name.startswith("gaps_total") and value] == []
