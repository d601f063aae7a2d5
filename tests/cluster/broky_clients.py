"""Clients and publishers over TCP during the faults of the scenario.

They have no session to resume: they continue by position. They only record; the checker judges.
"""

import asyncio
import contextlib
import hashlib
import json
import random
import time
from collections.abc import Sequence

from ropewalk.protocol.broky.frames import (
    Body,
    Error,
    Format,
    Gap,
    Hello,
    Ping,
    Pong,
    Pushed,
    Reason,
    Refused,
    Run,
    Subscribe,
    Subscribed,
    Welcome,
)
from ropewalk.protocol.broky.runs import build_run, encode_run, split_payloads
from ropewalk.protocol.broky.tables import encode
from tests.broky_client import BrokyLink, Cut, positions
from tests.clients.credentials import token
from tests.cluster.checker import Life, Message, Position, Publication, ReportedGap, has_end
from tests.cluster.publishers import REQUEST_SECONDS, STREAMS, World
from tests.server import Address

SILENCE_SECONDS = 4.0  # without an answer to a ping, after which a node is left
PING_SECONDS = 1.0
CONNECT_SECONDS = 4.0
GONE = (Cut, OSError, TimeoutError)


class RoamingBrokyClient:
    """Subscribes to some streams from their first message on, and comes back again and again, to whichever node."""

    def __init__(self, name: str, world: World, chance: random.Random) -> None:
        self.name = name
        self._world = world
        self._chance = chance
        self._hello = encode(Hello(token=token(name).encode()))
        self._positions: dict[str, Position | None] = dict.fromkeys(chance.sample(STREAMS, chance.randint(2, 4)))
        self._asked: list[str] = []  # by ref, less one
        self._pinged = 0
        self._answered = 0
        for stream in self._positions:
            world.record.seen[name, stream] = []

    def has_everything(self) -> bool:
        return all(has_end(self._world.record.seen[self.name, stream]) for stream in self._positions)

    async def run(self) -> None:
        while not self._world.over.is_set():
            started = time.monotonic()
            link = await self._connect(self._chance.choice(self._world.nodes))
            if link is None:
                await asyncio.sleep(0.1 + self._chance.random() * 0.3)
                continue
            life = len(self._world.record.lives)
            self._world.record.lives.append(Life(self.name, started, time.monotonic(), None, False))
            self._world.counts["connections over TCP"] += 1
            try:
                await self._visit(link)
            except GONE:
                self._world.counts["connections over TCP that broke"] += 1
            link.cut() if self._chance.random() < 0.7 else link.hang_up()
            self._world.record.lives[life] = self._world.record.lives[life]._replace(ended=time.monotonic())

    async def _connect(self, node: Address) -> BrokyLink | None:
        link: BrokyLink | None = None
        with contextlib.suppress(*GONE):
            async with asyncio.timeout(CONNECT_SECONDS):
                link = await BrokyLink.open(node)
                link.write(self._hello)
                if isinstance((await link.next()), Welcome):
                    return link
        if link is not None:
            link.cut()
        self._world.counts["connects over TCP failed"] += 1
        return None

    async def _visit(self, link: BrokyLink) -> None:
        """Stay for a random time, which may end in the middle of a frame."""
        self._asked, self._pinged, self._answered = [], 0, 0
        for stream in self._positions:
            self._ask(link, stream)
        received_at = time.monotonic()
        until = received_at + self._chance.choice((0.1, 0.3, 1.0, 3.0, 6.0))
        while not self._world.over.is_set() and (time.monotonic() < until or self._world.calm.is_set()):
            try:
                bodies = await link.some(self._chance.choice((10_000, 10_000, 37)), PING_SECONDS)
            except TimeoutError:
                if time.monotonic() - received_at > SILENCE_SECONDS:
                    raise
                self._pinged += 1
                link.write(encode(Ping(self._pinged)))
                continue
            received_at = time.monotonic()
            for body in bodies:
                await self._take(link, body)

    def _ask(self, link: BrokyLink, stream: str) -> None:
        at = self._positions[stream]
        self._asked.append(stream)
        ref, key = len(self._asked), stream.encode()
        if at is None:
            link.write(encode(Subscribe(ref, key, history=True)))
        else:
            link.write(encode(Subscribe(ref, key, epoch=at.epoch.encode(), offset=at.offset)))

    async def _take(self, link: BrokyLink, body: Body) -> None:
        match body:
            case Run() as run:
                self._run(run)
            case Gap(key, reason, epoch, _, last):
                self._note_gap(key.decode(), reason, Position(epoch.decode(), last))
            case Refused(ref):  # the engine is down
                self._world.counts["subscriptions over TCP refused"] += 1
                await asyncio.sleep(0.3)
                self._ask(link, self._asked[ref - 1])
            case Error(reason, text):
                self._world.counts[f"ended over TCP: {reason.name.lower()} {text}"] += 1
                raise Cut
            case Subscribed() | Pong():
                pass
            case other:
                raise AssertionError(f"not for a client: {other}")

    def _run(self, run: Run) -> None:
        stream, epoch = run.key.decode(), run.epoch.decode()
        for offset, payload in enumerate(split_payloads(run), start=run.offset):
            position = Position(epoch, offset)
            name = json.loads(payload).split("|")[0]
            self._world.record.seen[self.name, stream].append(Message(position, name))
            self._positions[stream] = position
            self._world.counts["deliveries over TCP"] += 1

    def _note_gap(self, stream: str, reason: Reason, upto: Position) -> None:
        self._world.record.seen[self.name, stream].append(ReportedGap(reason.name.lower(), upto.epoch, upto.offset + 1))
        if upto.epoch:  # else it gives no position
            self._positions[stream] = upto
        self._world.counts[f"gaps over TCP: {reason.name.lower()}"] += 1


class BrokyClusterPublisher:
    """Pushes runs at any node. With uids it repeats a push at other nodes until it has the positions; without, never."""

    def __init__(self, name: str, world: World, chance: random.Random, pause: float) -> None:
        self._name = name
        self._world = world
        self._chance = chance
        self._pause = pause
        self._written = 0
        self._link: BrokyLink | None = None

    async def run(self, until: asyncio.Event) -> None:
        while not until.is_set():
            with_uid = self._chance.random() < 0.7
            batch = [self._publication() for _ in range(self._chance.choice((1, 1, 1, 3, 10)))]
            runs = self._runs(batch, with_uid)
            done = await self._publish(runs, with_uid)
            if done and with_uid and self._chance.random() < 0.2:
                self._world.counts["pushed again after the answer"] += len(batch)
                await self._publish(runs, with_uid)
            if self._chance.random() < 0.2:
                self._leave()  # the next one goes elsewhere
            await asyncio.sleep(self._chance.random() * 2 * self._pause)
        self._leave()

    def _publication(self) -> Publication:
        self._written += 1
        return self._world.publication(f"{self._name}/{self._written}", self._chance.choice(STREAMS))

    def _runs(self, batch: Sequence[Publication], with_uid: bool) -> list[tuple[Run, list[Publication]]]:
        """One for each stream."""
        filler = "." * self._chance.choice((0, 0, 200, 3000))
        streams: dict[str, list[Publication]] = {}
        for publication in batch:
            streams.setdefault(publication.stream, []).append(publication)
        return [
            (_run_of(ref, stream, each, filler, with_uid), each) for ref, (stream, each) in enumerate(streams.items(), start=1)
        ]

    async def _publish(self, runs: Sequence[tuple[Run, list[Publication]]], with_uid: bool) -> bool:
        """True once all have a position."""
        left = list(runs)
        while True:
            answers = await self._send([run for run, _ in left])
            for run, publications in left:
                if run.ref in answers:
                    self._note(publications, *answers[run.ref])
            left = [(run, publications) for run, publications in left if run.ref not in answers]
            if not left:
                return True
            self._world.counts["pushes failed"] += len(left)
            if not with_uid:
                return False
            await asyncio.sleep(0.1 + self._chance.random() * 0.4)

    async def _send(self, runs: Sequence[Run]) -> dict[int, tuple[bytes, int]]:
        """The positions of acknowledged runs, by ref. The others may have been registered, or not."""
        answers: dict[int, tuple[bytes, int]] = {}
        refused = 0
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                link = await self._connected()
                link.write(b"".join(map(encode_run, runs)))
                while len(answers) + refused < len(runs):
                    match await link.next():
                        case Pushed() as pushed:
                            answers |= positions(pushed)
                        case Refused(reason=Reason.UNAVAILABLE):
                            refused += 1
                        case Error(reason=Reason.DRAINING | Reason.UNAVAILABLE):
                            raise Cut
                        case other:
                            raise AssertionError(f"not an answer to a push: {other}")
        except GONE:
            self._leave()
        return answers

    async def _connected(self) -> BrokyLink:
        if self._link is None:
            self._link = await BrokyLink.open(self._chance.choice(self._world.nodes))
            self._link.write(encode(Hello()))
            if not isinstance(await self._link.next(), Welcome):
                raise Cut
        return self._link

    def _leave(self) -> None:
        if self._link is not None:
            self._link.cut()
            self._link = None

    def _note(self, publications: Sequence[Publication], epoch: bytes, first: int) -> None:
        now = time.monotonic()
        for offset, publication in enumerate(publications, start=first):
            position = Position(epoch.decode(), offset)
            if publication.position not in (None, position):
                self._world.record.other_receipts.append((publication.stream, Message(position, publication.name)))
            else:
                publication.acked = publication.acked or now
                publication.position = position
            self._world.counts["pushed over TCP"] += 1


def _run_of(ref: int, stream: str, publications: Sequence[Publication], filler: str, with_uid: bool) -> Run:
    payloads = [json.dumps(f"{each.name}|{filler}").encode() for each in publications]
    uid = b"".join(hashlib.sha1(each.name.encode()).digest() for each in publications) if with_uid else b""
    return build_run(stream.encode(), payloads, ref, Format.JSON, uid=uid)
