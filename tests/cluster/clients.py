"""WebSocket clients that move from node to node during the faults of the scenario.

They only record; the checker judges.
"""

import asyncio
import json
import random
import time

import aiohttp

from tests.cable import Cable, Closed, Frame, identifier, kind
from tests.clients.credentials import token
from tests.cluster.checker import Life, Message, Position, ReportedGap, has_end
from tests.cluster.publishers import SETTLE_SECONDS, STREAMS, World
from tests.server import Address

SILENCE_SECONDS = 4.0  # pings come every second: a node from which nothing comes is left
CONNECT_SECONDS = 4.0

# How a client leaves a node: its link breaks; it comes back by another link while the old one still stands; its link breaks
# and it comes back after a while; it has forgotten its session; it goes for good.
WAYS = ("cut", "cut", "taken over", "taken over", "away", "sid lost", "gone")


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
        self._open: list[Cable] = []
        streams = chance.sample(STREAMS, chance.randint(2, 4))
        self.positions: dict[str, Position | None] = dict.fromkeys(streams)
        self.room = streams[0]
        self.here = True
        for stream in streams:
            world.record.seen[name, stream] = []

    def has_everything(self) -> bool:
        return all(has_end(self._world.record.seen[self.name, stream]) for stream in self.positions)

    async def run(self) -> None:
        try:
            await self._roam()
            await self._await_former_links()
        finally:
            for connection in self._open:
                await connection.cut()

    async def _roam(self) -> None:
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
                await self._cut(connection)
            if way == "away":
                await asyncio.sleep(self._chance.random() * 4)

    async def _connect(self) -> Cable | None:
        self._node = self._chance.choice([node for node in self._world.nodes if node is not self._node] or self._world.nodes)
        started = time.monotonic()
        connection: Cable | None = None
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                connection = await Cable.connect(self._node.cable, sid=self._sid, params=self._params)
                self._open.append(connection)
                welcome = await connection.expect("welcome")
        except (aiohttp.ClientError, TimeoutError, OSError, AssertionError):
            self._world.counts["connects failed"] += 1
            if connection is not None:
                await self._cut(connection)
            return None
        self._welcomed(welcome, started)
        if (former := self._still_open) is not None:
            self._still_open = None
            if welcome.get("restored"):
                self._superseded.append((self._sid, former))
            else:  # the session was not resumed, so its former link may stay open
                await self._cut(former)
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
        """A restored session joins again, as `@anycable/core` does: that it joined may have been lost on the way."""
        for stream in self.positions:
            await self._ask(connection, stream, "history" if identifier(stream) in self._restored else "subscribe")
        if identifier(self.room) in self._restored:
            await connection.send(command="join", identifier=identifier(self.room), presence={"id": self.name})
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
                self._note_gaps(frame)
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

    def _note_gaps(self, frame: Frame) -> None:
        for stream, gap in frame["streams"].items():
            self._world.record.seen[self.name, stream].append(ReportedGap(gap["reason"], gap["epoch"], gap["oldest"]))
            if gap["epoch"]:  # else it gives no position
                self.positions[stream] = Position(gap["epoch"], gap["oldest"] - 1)
            self._world.counts[f"gaps: {gap['reason']}"] += 1

    async def _presence(self, connection: Cable, message: Frame) -> None:
        """A join has no answer. A client that is not in the list joins again, and asks again if the engine is down."""
        if message["type"] not in ("info", "error") or self.name in (each["id"] for each in message.get("records", ())):
            return
        self._world.counts["joined again"] += 1
        await asyncio.sleep(0.3)
        await connection.send(command="join", identifier=identifier(self.room), presence={"id": self.name})
        await connection.send(command="presence", identifier=identifier(self.room))

    async def _cut(self, connection: Cable) -> None:
        self._open.remove(connection)
        await connection.cut()

    async def _await_former_links(self) -> None:
        """The server closes former links once their session was resumed elsewhere."""
        await self._world.calm.wait()
        for sid, connection in self._superseded:
            try:
                async with asyncio.timeout(SETTLE_SECONDS):
                    await connection.closed()
                self._world.counts["former links ended"] += 1
            except TimeoutError:
                self._world.record.left_open.append(f"{self.name}, before session {sid}")
