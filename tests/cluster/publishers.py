"""Publishers over HTTP and Redis Streams during the faults of the scenario, and remote disconnects of users."""

import asyncio
import contextlib
import json
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Any, Protocol

import aiohttp
import redis.asyncio
import redis.exceptions
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from tests.cluster.checker import END, Kick, Message, Position, Publication, Record
from tests.server import Address

# Any name is legal. These have the special characters of NATS subjects, Redis keys and hash tags, and URLs.
STREAMS = ("plain", "with space", "dots.and.*.>", "{braces}:colon", "ünï/cødé/🜁", "per%cent?&#", "a:b", "a", "x" * 200)

REQUEST_SECONDS = 4.0  # after which a publisher asks another node
SETTLE_SECONDS = 90.0
"""Deadline after the last fault: for clients to receive everything, and for members that are gone to leave. It matters only
where a run fails."""

ENTRIES = "__anycable__"  # the key from which `redisx` reads


class World:
    """What all of them share. `calm`: no more faults and no more publications. `over`: everything was checked."""

    def __init__(self, nodes: Sequence[Address], clients: int) -> None:
        self.nodes = nodes
        self.may_go = clients // 5  # clients that may still go for good
        self.record = Record()
        self.counts: Counter[str] = Counter()
        self.calm = asyncio.Event()
        self.over = asyncio.Event()

    def publication(self, name: str, stream: str) -> Publication:
        made = self.record.publications[name] = Publication(name, stream, time.monotonic())
        return made


class Writer(Protocol):
    async def run(self, until: asyncio.Event) -> None: ...


class ClusterPublisher:
    """Publishes at any node. With a uid it repeats a request at other nodes until it has the position; without, never."""

    def __init__(self, name: str, world: World, chance: random.Random, pause: float) -> None:
        self._name = name
        self._world = world
        self._chance = chance
        self._pause = pause
        self._written = 0

    async def run(self, until: asyncio.Event) -> None:
        async with _http() as http:
            while not until.is_set():
                with_uid = self._chance.random() < 0.7
                batch = [self._publication() for _ in range(self._chance.choice((1, 1, 1, 1, 3, 10)))]
                done = await self._publish(http, batch, with_uid)
                if done and with_uid and self._chance.random() < 0.2:
                    self._world.counts["repeated after the answer"] += len(batch)
                    await self._publish(http, batch, with_uid)
                await asyncio.sleep(self._chance.random() * 2 * self._pause)

    async def end(self) -> None:
        batch = [self._publication(stream, f"{END} of {stream}") for stream in STREAMS]
        async with _http() as http:
            await self._publish(http, batch, with_uid=True)

    def _publication(self, stream: str = "", name: str = "") -> Publication:
        self._written += 1
        return self._world.publication(name or f"{self._name}/{self._written}", stream or self._chance.choice(STREAMS))

    async def _publish(self, http: aiohttp.ClientSession, batch: list[Publication], with_uid: bool) -> bool:
        """True once all have a position."""
        filler = "." * self._chance.choice((0, 0, 200, 3000))
        body = [_as_sent(each, filler, with_uid) for each in batch]
        while True:
            receipts = await self._send(http, body)
            if receipts is not None:
                self._note(batch, receipts)
                return True
            self._world.counts["publish requests failed"] += 1
            if not with_uid:
                return False
            await asyncio.sleep(0.1 + self._chance.random() * 0.4)

    async def _send(self, http: aiohttp.ClientSession, body: list[dict[str, str]]) -> list[dict[str, Any]] | None:
        """None: it may have been registered, or not."""
        node = self._chance.choice(self._world.nodes)
        try:
            async with http.post(f"{node.url}/_broadcast", json=body if len(body) > 1 else body[0]) as response:
                answer = await response.json()
                assert response.status in (201, 503), answer
                self._world.counts[f"publish requests answered {response.status}"] += 1
                return answer["publications"] if response.status == 201 else None
        except (aiohttp.ClientError, TimeoutError, OSError):
            return None

    def _note(self, batch: list[Publication], receipts: list[dict[str, Any]]) -> None:
        now = time.monotonic()
        for publication, receipt in zip(batch, receipts, strict=True):
            position = Position(receipt["epoch"], receipt["offset"])
            if publication.position not in (None, position):
                self._world.record.other_receipts.append((publication.stream, Message(position, publication.name)))
            else:
                publication.acked = publication.acked or now
                publication.position = position
            self._world.counts["found by their uid"] += receipt.get("duplicate", False)


def _as_sent(publication: Publication, filler: str, with_uid: bool) -> dict[str, str]:
    uid = {"uid": publication.name} if with_uid else {}
    return {"stream": publication.stream, "data": json.dumps(f"{publication.name}|{filler}"), **uid}


class EntryPublisher:
    """Adds entries for the broadcaster `redisx`. An entry counts as acknowledged once Redis has it. There is no position."""

    def __init__(self, name: str, world: World, port: int, chance: random.Random, pause: float) -> None:
        self._name = name
        self._world = world
        self._chance = chance
        self._pause = pause
        self._redis: redis.asyncio.Redis = redis.asyncio.Redis(
            port=port, socket_timeout=REQUEST_SECONDS, retry=Retry(NoBackoff(), 0)
        )

    async def run(self, until: asyncio.Event) -> None:
        written = 0
        while not until.is_set():
            written += 1
            publication = self._world.publication(f"{self._name}/{written}", self._chance.choice(STREAMS))
            with_uid = self._chance.random() < 0.5
            payload = json.dumps(_as_sent(publication, "", with_uid))
            while not await self._add(publication, payload) and with_uid:
                await asyncio.sleep(0.2)
            await asyncio.sleep(self._chance.random() * 2 * self._pause)

    async def _add(self, publication: Publication, payload: str) -> bool:
        try:
            await self._redis.xadd(ENTRIES, {"payload": payload})
        except (redis.exceptions.ConnectionError, redis.exceptions.TimeoutError, redis.exceptions.BusyLoadingError):
            return False
        publication.acked = time.monotonic()
        self._world.counts["entries added"] += 1
        return True

    async def taken(self, seconds: float) -> None:
        """Wait until no entry is left. Entries that are left after `seconds` will be missing in the histories."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while await self._redis.xlen(ENTRIES):
                    await asyncio.sleep(0.2)
        await self._redis.aclose()


@contextlib.asynccontextmanager
async def _http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=REQUEST_SECONDS)) as http:
        yield http


class Kicker:
    """Disconnects users remotely, at any node."""

    def __init__(self, world: World, ids: Sequence[str], chance: random.Random, pause: float) -> None:
        self._world = world
        self._ids = ids
        self._chance = chance
        self._pause = pause

    async def run(self, until: asyncio.Event) -> None:
        async with _http() as http:
            while not until.is_set():
                await asyncio.sleep(self._chance.random() * 2 * self._pause)
                ids, sent = self._chance.choice(self._ids), time.monotonic()
                while not await self._order(http, ids):
                    await asyncio.sleep(0.2)
                self._world.record.kicks.append(Kick(ids, sent, time.monotonic()))
                self._world.counts["remote disconnects"] += 1

    async def _order(self, http: aiohttp.ClientSession, ids: str) -> bool:
        node = self._chance.choice(self._world.nodes)
        order = {"command": "disconnect", "payload": {"identifier": ids, "reconnect": True}}
        try:
            async with http.post(f"{node.url}/_broadcast", json=order) as response:
                return response.status == 201
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False
