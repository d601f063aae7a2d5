"""Joins during a gap: messages that could be delivered are, and a gap is reported in its place."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import pytest

from ropewalk.core.rules import Rulebook
from ropewalk.model.history import Gap, Replay
from ropewalk.model.limits import Limits
from ropewalk.model.messages import Position
from ropewalk.model.rules import StreamRules
from ropewalk.testing.shared_store import LosableStore
from ropewalk.testing.simulation.unreliable import Air, Counts, Faults, UnreliableBackend
from tests.unit.engine.workbench import Client, Clock, Workbench, public, settle
from tests.waiting import until


class HeldReads:
    """Holds each `replay` call until the test lets it through: first the request, then the answer."""

    def __init__(self, backend: UnreliableBackend) -> None:
        self._replay = backend.streams.replay
        self._requests: list[asyncio.Event] = []
        self._answers: list[asyncio.Event] = []
        self.holding = True
        backend.streams.replay = self.replay  # type: ignore[method-assign]

    async def replay(self, stream: str, position: Position) -> Replay | Gap:
        await self._hold(self._requests)
        answer = await self._replay(stream, position)
        await self._hold(self._answers)
        return answer

    async def _hold(self, held: list[asyncio.Event]) -> None:
        if self.holding:
            held.append(asyncio.Event())
            await held[-1].wait()

    async def execute(self) -> None:
        """Let the oldest held request reach the store. Its answer is held."""
        await until(lambda: self._requests)
        before = len(self._answers)
        self._requests.pop(0).set()
        await until(lambda: len(self._answers) > before)

    async def answer(self) -> None:
        """Let the oldest held answer arrive."""
        self._answers.pop(0).set()
        await settle()

    def let_all_through(self) -> None:
        self.holding = False
        for event in self._requests + self._answers:
            event.set()


class LosableBench(Workbench):
    """A node over a store that can lose its data, and a feed that can lose messages."""

    def __init__(self, history_limit: int = 100) -> None:
        self.faults = Faults(latency=0.0)
        self.faults.heal()
        self.air = Air(self.faults, Counts(), Random(0))
        clock = Clock()
        self.store = LosableStore(Rulebook(StreamRules(history_limit=history_limit)), clock, self.air)
        backend = UnreliableBackend(self.store, self.air, "node", lambda sid: None)
        super().__init__(Limits(ping_interval=0, resume_timeout=3600), backend=backend, clock=clock)
        self.reads = HeldReads(backend)
        self.reads.holding = False

    async def subscribe(self, epoch: str, offset: int) -> Client:
        """A client with positions that joins from this one; its first read of the store is held."""
        client = await self.connect(positions="1")
        self.reads.holding = True
        request = {"streams": {"s": {"epoch": epoch, "offset": offset}}}
        await client.send(command="subscribe", identifier=public("s"), history=request)
        return client


@asynccontextmanager
async def started(bench: LosableBench) -> AsyncIterator[Client]:
    """A client that listens to the stream from its beginning."""
    async with bench:
        client = await bench.connect(positions="1")
        await client.send(command="subscribe", identifier=public("s"))
        await until(lambda: client.seen() == ["welcome", "confirm_subscription"])
        yield client


async def until_seen(client: Client, *expected: str | int) -> None:
    await until(lambda: len(client.seen()) >= len(expected), client.seen)
    assert client.seen() == list(expected)


def gaps(client: Client) -> list[dict[str, object]]:
    return [reply["streams"]["s"] for reply in client.connection.replies() if reply.get("type") == "reject_history"]


async def test_join_with_a_snapshot_of_a_new_epoch_gets_the_messages_above_it() -> None:
    bench = LosableBench()
    async with started(bench) as listener:
        (first, _) = await bench.publish("s", "1", "2")
        client = await bench.subscribe(first.epoch, 2)
        await bench.store.lose()
        (second, _) = await bench.publish("s", "3", "4")
        await bench.reads.execute()  # the join reads the new epoch before the listeners are told of it
        await bench.reads.answer()
        await bench.publish("s", "5")
        bench.reads.let_all_through()
        await until_seen(client, "welcome", "confirm_subscription", "reject_history", 1, 2, "confirm_history", 3)
        await bench.publish("s", "6")
        await until(lambda: client.seen()[-1] == 4)
        assert gaps(client) == [{"reason": "epoch_changed", "epoch": second.epoch, "oldest": 1, "tip": 2}]
        await until_seen(listener, "welcome", "confirm_subscription", 1, 2, "reject_history", 1, 2, 3, 4)


async def test_join_with_a_snapshot_of_a_lost_epoch_gets_the_new_epoch_after_the_gap() -> None:
    bench = LosableBench()
    async with started(bench):
        (first, _) = await bench.publish("s", "1", "2")
        client = await bench.subscribe(first.epoch, 1)
        await bench.reads.execute()
        await bench.publish("s", "3")  # collected before the loss
        await bench.store.lose()
        (second, _) = await bench.publish("s", "4", "5")
        bench.reads.let_all_through()
        await until_seen(client, "welcome", "confirm_subscription", 2, "confirm_history", 3, "reject_history", 1, 2)
        assert gaps(client) == [{"reason": "epoch_changed", "epoch": second.epoch, "oldest": 1, "tip": 2}]
        # Nothing of it is sent again.
        request = {"streams": {"s": {"epoch": second.epoch, "offset": 0}}}
        await client.send(command="history", identifier=public("s"), history=request)
        await until(lambda: client.seen()[-1] == "confirm_history")
        assert client.seen()[8:] == ["confirm_history"]


@pytest.mark.parametrize("during", [0, 1])
async def test_gap_below_the_snapshot_is_not_reported_to_the_join(during: int) -> None:
    bench = LosableBench(history_limit=3)
    async with started(bench) as listener:
        (first, _) = await bench.publish("s", "1", "2")
        bench.faults.lost = 1.0
        await bench.publish("s", *"345678")
        client = await bench.subscribe(first.epoch, 7)
        await bench.reads.execute()
        await bench.reads.answer()
        bench.faults.lost = 0.0
        await bench.publish("s", *"9" * during)
        bench.reads.let_all_through()
        await until_seen(client, "welcome", "confirm_subscription", 8, "confirm_history", *[9] * during)
        kept = [6, 7, 8, 9][during : 3 + during]
        await until_seen(listener, "welcome", "confirm_subscription", 1, 2, "reject_history", *kept)
        assert gaps(listener) == [{"reason": "trimmed", "epoch": first.epoch, "oldest": kept[0], "tip": kept[-1]}]


async def test_gap_that_ends_above_the_snapshot_is_reported_from_there() -> None:
    bench = LosableBench(history_limit=3)
    async with started(bench):
        (first, _) = await bench.publish("s", "1", "2")
        client = await bench.subscribe(first.epoch, 1)
        bench.faults.lost = 1.0
        await bench.publish("s", "3")
        await bench.reads.execute()  # up to 3
        await bench.publish("s", *"45678")
        bench.reads.let_all_through()
        await until_seen(client, "welcome", "confirm_subscription", 2, 3, "confirm_history", "reject_history", 6, 7, 8)
        assert gaps(client) == [{"reason": "trimmed", "epoch": first.epoch, "oldest": 6, "tip": 8}]


async def test_unclaimed_subscription_gets_the_new_epoch_after_its_gap() -> None:
    bench = LosableBench()
    async with started(bench) as client:
        await bench.publish("s", "1")
        client.session.connection_lost()
        back = await bench.connect(client.sid, positions="1")
        await bench.publish("s", "2")
        await bench.store.lose()
        (second, _) = await bench.publish("s", "3", "4")
        (subscription,) = back.session.subscriptions.values()
        await bench.node.joiner.abandon(back.session.link, subscription)
        await until_seen(back, "welcome", 2, "reject_history", 1, 2, "reject_history")
        assert gaps(back) == [
            {"reason": "epoch_changed", "epoch": second.epoch, "oldest": 1, "tip": 2},
            {"reason": "unclaimed", "epoch": second.epoch, "oldest": 1, "tip": 2},
        ]
        request = {"streams": {"s": {"epoch": second.epoch, "offset": 0}}}
        await back.send(command="history", identifier=public("s"), history=request)
        await until(lambda: len(back.seen()) > 6)
        assert back.seen()[6:] == ["confirm_history"]


async def test_gap_in_the_epoch_of_the_snapshot_is_not_an_epoch_change() -> None:
    bench = LosableBench(history_limit=0)
    async with started(bench) as listener:
        (first,) = await bench.publish("s", "1")
        client = await bench.subscribe(first.epoch, 1)
        await bench.store.lose()
        bench.faults.lost = 1.0
        (second,) = await bench.publish("s", "2")
        await bench.reads.execute()
        await bench.reads.answer()
        await bench.publish("s", "3")
        bench.faults.lost = 0.0
        await bench.publish("s", "4")
        bench.reads.let_all_through()
        await until_seen(client, "welcome", "confirm_subscription", "reject_history", "confirm_history", "reject_history", 3)
        assert gaps(client) == [
            {"reason": "epoch_changed", "epoch": second.epoch, "oldest": 2, "tip": 1},
            {"reason": "trimmed", "epoch": second.epoch, "oldest": 3, "tip": 3},
        ]
        assert gaps(listener) == [{"reason": "epoch_changed", "epoch": second.epoch, "oldest": 3, "tip": 3}]
