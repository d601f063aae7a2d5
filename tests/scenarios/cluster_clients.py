"""Those who use a cluster while it suffers: clients that roam between nodes, publishers, and one who disconnects users.

They write down what they did and what came. Nothing is judged here: that is the checker's work.
"""

import asyncio
import contextlib
import json
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Any

import aiohttp

from tests.cable import TIMEOUT, Cable, Closed, Frame, identifier, kind
from tests.clients.credentials import token
from tests.scenarios.cluster_checker import END, Kick, Life, Message, Position, Publication, Record, ToldGap
from tests.server import Address

# Any name is legal: with what is special in subjects of NATS, in keys and hash tags of Redis, and in URLs.
STREAMS = ("plain", "with space", "dots.and.*.>", "{braces}:colon", "ünï/cødé/🜁", "per%cent?&#", "a:b", "a", "x" * 200)

REQUEST_SECONDS = 4.0  # after which a publisher asks another node
SILENCE_SECONDS = 4.0  # pings come every second: a node from which nothing comes is left
CONNECT_SECONDS = 4.0

# How a client leaves a node: its link breaks; it comes back by another link while the old one still stands; its link breaks
# and it comes back after a while; it has forgotten its session; it goes for good.
WAYS = ("cut", "cut", "taken over", "taken over", "away", "sid lost", "gone")
MOST_GONE = 0.2  # of all clients


class World:
    """What all of them share. `calm`: no more faults and no more publications; `over`: everything was checked."""

    def __init__(self, nodes: Sequence[Address], clients: int) -> None:
        self.nodes = nodes
        self.may_go = int(clients * MOST_GONE)  # clients that may still go for good
        self.record = Record()
        self.counts: Counter[str] = Counter()
        self.calm = asyncio.Event()
        self.over = asyncio.Event()


# --- publishers ------------------------------------------------------------------------------------------------------------


class ClusterPublisher:
    """Publishes at any node. With a uid it asks again, here and there, until it is told the position; without, never."""

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
        made = Publication(name or f"{self._name}/{self._written}", stream or self._chance.choice(STREAMS), time.monotonic())
        self._world.record.publications[made.name] = made
        return made

    async def _publish(self, http: aiohttp.ClientSession, batch: list[Publication], with_uid: bool) -> bool:
        """True once all have a position."""
        filler = "." * self._chance.choice((0, 0, 200, 3000))
        body = [
            {"stream": each.stream, "data": json.dumps(f"{each.name}|{filler}"), **({"uid": each.name} if with_uid else {})}
            for each in batch
        ]
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
                # The first receipt stays; what contradicts it is evidence of its own.
                again = self._world.record.seen.setdefault((f"receipts of {self._name}", publication.stream), [])
                again.append(Message(position, publication.name))
            else:
                publication.acked = publication.acked or now
                publication.position = position
            self._world.counts["found by their uid"] += receipt.get("duplicate", False)


@contextlib.asynccontextmanager
async def _http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=REQUEST_SECONDS)) as http:
        yield http


class Kicker:
    """Disconnects users remotely, by whichever node."""

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


# --- clients ---------------------------------------------------------------------------------------------------------------


class RoamingClient:
    """Subscribes to some streams from their first message on, is a member of one of them, and comes back again and again."""

    def __init__(self, name: str, world: World, chance: random.Random) -> None:
        self.name = name
        self._world = world
        self._chance = chance
        self._params = {"jid": token(name), "pi": "1", "positions": "1"}
        self._node: Address | None = None  # tried last
        self._home: Address | None = None  # welcomed at last
        self._sid = ""
        self._sid_since = 0.0
        self._life = -1  # place of the present one among all lives
        self._still_open: Cable | None = None  # the link that it left, until it is known whether its session was resumed
        self._superseded: list[tuple[str, Cable]] = []
        streams = chance.sample(STREAMS, chance.randint(2, 4))
        self.positions: dict[str, Position | None] = dict.fromkeys(streams)
        self.room = streams[0]
        self.here = True
        for stream in streams:
            world.record.seen[name, stream] = []

    def has_everything(self) -> bool:
        lines = [self._world.record.seen[self.name, stream] for stream in self.positions]
        return all(line and isinstance(line[-1], Message) and line[-1].name.startswith(END) for line in lines)

    async def run(self) -> None:
        while self.here and not self._world.over.is_set():
            connection = await self._connect()
            if connection is None:
                await asyncio.sleep(0.1 + self._chance.random() * 0.3)
                continue
            way = await self._visit(connection)
            self._ends(way)
            if way == "taken over":
                self._still_open = connection
            else:
                await connection.cut()
            if way == "away":
                await asyncio.sleep(self._chance.random() * 4)
        await self._look_back()

    async def _connect(self) -> Cable | None:
        self._node = self._chance.choice([node for node in self._world.nodes if node is not self._node] or self._world.nodes)
        started = time.monotonic()
        connection: Cable | None = None
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                connection = await Cable.connect(self._node.cable, sid=self._sid, params=self._params)
                welcome = await connection.expect("welcome")
        except (aiohttp.ClientError, TimeoutError, OSError, AssertionError):
            self._world.counts["connects failed"] += 1
            if connection is not None:
                await connection.cut()
            return None
        self._welcomed(welcome, started)
        if (former := self._still_open) is not None:
            self._still_open = None
            if welcome.get("restored"):
                self._superseded.append((self._sid, former))
            else:  # nobody took over: it may live on
                await former.cut()
        self._home = self._node
        return connection

    def _welcomed(self, welcome: Frame, started: float) -> None:
        restored, now = welcome.get("restored", False), time.monotonic()
        asked = self._sid_since if self._sid else None
        self._world.record.lives.append(Life(self.name, started, now, asked, restored))
        self._life = len(self._world.record.lives) - 1
        where = "another node" if self._node is not self._home else "the same node"
        self._world.counts[f"resumed on {where}" if restored else "sessions begun"] += 1
        self._restored = set(welcome.get("restored_ids", ()))
        self._sid, self._sid_since = welcome["sid"], now

    def _ends(self, way: str) -> None:
        lives = self._world.record.lives
        lives[self._life] = lives[self._life]._replace(ended=time.monotonic())
        self._world.counts[f"left: {way}"] += 1
        if way == "sid lost":
            self._sid = ""
        if way == "gone":
            self.here = False
            self._world.counts["gone for good"] += 1

    async def _visit(self, connection: Cable) -> str:
        """Until it is time to go. Returns how."""
        try:
            await self._arrive(connection)
            until = time.monotonic() + self._chance.choice((0.3, 1.0, 3.0, 6.0))
            while not self._world.over.is_set():
                await self._take(connection, await connection.any(SILENCE_SECONDS))
                if time.monotonic() > until and not self._world.calm.is_set():
                    return self._way()
            await connection.send(command="ping")
            while kind(frame := await connection.any(SILENCE_SECONDS)) != "pong":
                await self._take(connection, frame)
        except Closed as closed:
            self._world.counts[f"closed: {str(closed).split(',')[0].removeprefix('closed with ')}"] += 1
        except (TimeoutError, OSError, aiohttp.ClientError):
            self._world.counts["silent nodes left"] += 1
            return "taken over" if self._chance.random() < 0.5 else "cut"
        return "cut"

    def _way(self) -> str:
        way = self._chance.choice(WAYS)
        return "cut" if way == "gone" and self._world.counts["gone for good"] >= self._world.may_go else way

    async def _arrive(self, connection: Cable) -> None:
        for stream in self.positions:
            await self._ask(connection, stream, "history" if identifier(stream) in self._restored else "subscribe")
        await connection.send(command="presence", identifier=identifier(self.room))

    async def _ask(self, connection: Cable, stream: str, command: str) -> None:
        position = self.positions[stream] or Position("", 0)
        history = {"streams": {stream: position._asdict()}}
        member = {"presence": {"id": self.name}} if command == "subscribe" and stream == self.room else {}
        await connection.send(command=command, identifier=identifier(stream), history=history, **member)

    async def _take(self, connection: Cable, frame: Frame) -> None:
        match kind(frame):
            case "message":
                self._message(frame)
            case "reject_history" if "streams" in frame:
                self._told(frame)
            case "reject_history":  # the engine is down
                await asyncio.sleep(0.3)
                await self._ask(connection, json.loads(frame["identifier"])["stream_name"], "history")
            case "reject_subscription":  # the engine is down
                self._world.counts["subscriptions rejected"] += 1
                await asyncio.sleep(0.3)
                await self._ask(connection, json.loads(frame["identifier"])["stream_name"], "subscribe")
            case "presence":
                await self._presence(connection, frame["message"])

    def _message(self, frame: Frame) -> None:
        stream, position = frame["stream_id"], Position(frame["epoch"], frame["offset"])
        self._world.record.seen[self.name, stream].append(Message(position, frame["message"].split("|")[0]))
        self.positions[stream] = position
        self._world.counts["deliveries"] += 1

    def _told(self, frame: Frame) -> None:
        for stream, gap in frame["streams"].items():
            self._world.record.seen[self.name, stream].append(ToldGap(gap["reason"], gap["epoch"], gap["oldest"]))
            self.positions[stream] = Position(gap["epoch"], gap["oldest"] - 1)
            self._world.counts[f"gaps told: {gap['reason']}"] += 1

    async def _presence(self, connection: Cable, message: Frame) -> None:
        """A join has no answer, and fails while the engine is down: who is not in the list joins again."""
        if message["type"] != "info" or self.name in (each["id"] for each in message.get("records", ())):
            return
        self._world.counts["joined again"] += 1
        await asyncio.sleep(0.3)
        await connection.send(command="join", identifier=identifier(self.room), presence={"id": self.name})
        await connection.send(command="presence", identifier=identifier(self.room))

    async def _look_back(self) -> None:
        """Links that it left open are ended by the server, once their session is resumed elsewhere."""
        await self._world.calm.wait()
        if self._still_open is not None:
            await self._still_open.cut()
        for sid, connection in self._superseded:
            try:
                async with asyncio.timeout(TIMEOUT):
                    await connection.closed()
                self._world.counts["former links ended"] += 1
            except TimeoutError:
                self._world.record.left_open.append(f"{self.name}, before session {sid}")
            await connection.cut()
