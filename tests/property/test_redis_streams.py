"""Streams in Redis against those in memory: random calls to both, in the same order and at the same times, return the same
answers except for the names of epochs."""

from collections.abc import Iterator, Sequence
from itertools import count
from random import Random
from typing import Any

import pytest

from ropewalk.adapters.backends.memory import MemoryBackend
from ropewalk.adapters.backends.redis import RedisBackend, RedisOptions
from ropewalk.connections.redis import RedisAddress
from ropewalk.core.rules import Rulebook
from ropewalk.model.errors import PartitionChanged
from ropewalk.model.history import Gap, Replay, split_at_gaps
from ropewalk.model.limits import StoreLimits
from ropewalk.model.messages import Position, Publication, Receipt, Registered
from ropewalk.model.rules import StreamRule, StreamRules
from ropewalk.ports import Backend, NodeName
from ropewalk.testing.clock import ManualClock
from tests.services import RedisServer, redis_server

STREAMS = ("long", "short", "none", "a", "b")
RULES = (
    StreamRule("long", history_limit=50, history_ttl=1000.0),
    StreamRule("short", history_limit=2),
    StreamRule("none", history_limit=0),
)
CALLS = 300
_numbers = count()

pytestmark = pytest.mark.tier("standard")


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with redis_server("--appendonly", "no") as server:
        yield server


class Epochs:
    """Numbers the epochs of one store in order of appearance."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {"": 0}

    def of(self, epoch: str) -> int:
        return self._numbers.setdefault(epoch, len(self._numbers))

    def receipt(self, receipt: Receipt) -> Any:
        return receipt.stream, self.of(receipt.epoch), receipt.offset, receipt.duplicate

    def messages(self, messages: Sequence[Registered]) -> Any:
        return [
            (self.of(each.epoch), each.offset, each.payload, each.timestamp, each.exclude_socket, each.broadcast_type)
            for each in messages
        ]

    def answer(self, answer: Replay | Gap) -> Any:
        return [
            (
                type(piece).__name__,
                self.of(piece.epoch),
                piece.tip,
                self.messages(piece.messages),
                (piece.reason, piece.oldest) if isinstance(piece, Gap) else (),
            )
            for piece in split_at_gaps(answer)
        ]


class Pair:
    def __init__(self, redis: RedisServer, seed: int) -> None:
        self.rng = Random(seed)
        self.clock = ManualClock()
        rules = Rulebook(StreamRules(history_limit=5, history_ttl=20.0), RULES)
        prefix, limits = f"pair{next(_numbers)}:", StoreLimits(dedup_ttl=30.0)
        plain = MemoryBackend(rules, self.clock, limits)
        real = [
            RedisBackend(rules, RedisAddress(redis.url), NodeName(node, node), limits, RedisOptions(prefix), self.clock)
            for node in ("one", "two")
        ]
        self.backends: list[Backend] = [plain, *real]
        self.plain, self.real = plain, real
        self.epochs = Epochs(), Epochs()
        self.given: list[tuple[str, tuple[Position, Position]]] = []
        self.sequence = 0

    async def call(self) -> str:
        name = self.rng.choice(("append", "append", "append", "replay", "replay", "since", "page", "summaries", "time"))
        arguments = getattr(self, f"draw_{name}")()
        answers = []
        for place, backend in enumerate((self.plain, self.rng.choice(self.real))):
            try:
                answers.append(await getattr(self, name)(place, backend, *arguments))
            except PartitionChanged as error:
                answers.append(str(error))
        return "" if answers[0] == answers[1] else f"{name} {arguments}:\n{answers[0]}\n{answers[1]}"

    def draw_append(self) -> tuple[Any, ...]:
        self.receipts: list[list[Receipt]] = []
        return ([self.publication() for _ in range(self.rng.choice((1, 1, 2, 8)))],)

    def publication(self) -> Publication:
        rng = self.rng
        producer = rng.choice(("", "", "p", "q"))
        if producer and rng.random() < 0.8:
            self.sequence += rng.choice((1, 2))
        return Publication(
            rng.choice(STREAMS),
            b"%d" % rng.randrange(10**6),
            exclude_socket=rng.choice(("", "sid")),
            broadcast_type=rng.choice(("", "kind")),
            transient=rng.random() < 0.1,
            uid=rng.choice(("", "", "u", "v", f"u{rng.randrange(20)}")),
            producer=producer,
            sequence=max(0, self.sequence - rng.choice((0, 0, 1))) if producer else 0,
            partition_key=rng.choice(("", "", "", "", "k")),
        )

    async def append(self, place: int, backend: Backend, batch: list[Publication]) -> Any:
        receipts = await backend.streams.append(batch)
        self.receipts.append(receipts)
        if place:
            for pair in zip(*self.receipts, strict=True):
                if pair[0].offset:
                    self.given.append((pair[0].stream, (_at(pair[0]), _at(pair[1]))))
        return [self.epochs[place].receipt(receipt) for receipt in receipts]

    def draw_replay(self) -> tuple[Any, ...]:
        stream, positions = self.rng.choice(self.given) if self.given else ("a", (Position("", 0),) * 2)
        ahead, at_start = self.rng.choice((0, 0, 0, 1, 100)), self.rng.random() < 0.1
        return stream, [Position("", 0) if at_start else Position(each.epoch, each.offset + ahead) for each in positions]

    async def replay(self, place: int, backend: Backend, stream: str, positions: list[Position]) -> Any:
        tip = await backend.streams.tip(stream)
        key = await backend.streams.partition_key(stream)
        answer = self.epochs[place].answer(await backend.streams.replay(stream, positions[place]))
        return answer, self.epochs[place].of(tip.epoch), tip.offset, key

    def draw_since(self) -> tuple[Any, ...]:
        return self.rng.choice(STREAMS), self.clock.now - self.rng.choice((0.0, 1.0, 5.0, 30.0))

    async def since(self, place: int, backend: Backend, stream: str, timestamp: float) -> Any:
        return self.epochs[place].answer(await backend.streams.since(stream, timestamp))

    def draw_page(self) -> tuple[Any, ...]:
        return self.rng.choice(STREAMS), self.rng.randrange(30), self.rng.choice((1, 3, 100))

    async def page(self, place: int, backend: Backend, stream: str, after: int, limit: int) -> Any:
        page = await backend.streams.page(stream, after, limit)
        if page is None:
            return None
        epochs = self.epochs[place]
        return epochs.of(page.epoch), page.tip, page.oldest, epochs.messages(page.messages), page.next_offset

    def draw_summaries(self) -> tuple[Any, ...]:
        return (self.rng.choice(("", "b")), self.rng.choice((1, 10)))

    async def summaries(self, place: int, backend: Backend, after: str, limit: int) -> Any:
        found = await backend.streams.summaries(after, limit)
        return [(each.stream, self.epochs[place].of(each.epoch), each.tip, each.oldest, each.kept) for each in found]

    def draw_time(self) -> tuple[Any, ...]:
        self.clock.advance(self.rng.choice((1.0, 1.0, 5.0, 15.0, 31.0, 400.0)))
        return ()

    async def time(self, place: int, backend: Backend) -> Any:
        await backend.sweep()
        gauges = backend.gauges()
        return [gauges[name] for name in ("streams", "history_messages", "history_bytes")]


def _at(receipt: Receipt) -> Position:
    return Position(receipt.epoch, receipt.offset)


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.tier("all")) for seed in range(2, 8))])
async def test_random_calls_have_the_same_answers(seed: int, redis: RedisServer) -> None:
    pair = Pair(redis, seed)
    for backend in pair.backends:
        await backend.start()
    try:
        for number in range(CALLS):
            assert not (difference := await pair.call()), f"call {number}: {difference}"
    finally:
        for backend in pair.backends:
            await backend.stop()
