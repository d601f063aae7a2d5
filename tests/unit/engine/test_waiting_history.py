"""The bound of history that waits for clients, and who is disconnected when it is reached."""

import asyncio
from functools import partial

import pytest

from ropewalk.engine.waiting_history import WaitingHistory
from ropewalk.model.errors import Unavailable
from ropewalk.model.history import MAX_ANSWER_BYTES, MESSAGE_OVERHEAD_BYTES, Gap, Replay
from ropewalk.model.limits import Limits
from ropewalk.model.messages import Position, Registered
from tests.unit.engine.workbench import Client, Workbench, public, settle

MESSAGES = [Registered("s", b"x" * 800, 1.0, "e", offset) for offset in range(1, 11)]
SIZE = 10 * (800 + MESSAGE_OVERHEAD_BYTES) + 5


async def slow(bench: Workbench) -> Client:
    client = await bench.connect()
    client.session.pause_writing()
    return client


async def answer() -> None:
    pass


def hold(waiting: WaitingHistory, client: Client) -> asyncio.Task[None]:
    return asyncio.ensure_future(waiting.drained(client.session.link, [MESSAGES], 5))


async def test_history_of_a_slow_client_is_counted_until_it_is_taken() -> None:
    async with Workbench() as bench:
        waiting, client = WaitingHistory(2 * SIZE), await slow(bench)
        held = hold(waiting, client)
        await settle()
        assert waiting.bytes == SIZE
        client.session.resume_writing()
        await held
        assert waiting.bytes == 0
        await waiting.drained(client.session.link, [MESSAGES], 5)  # it is not slow, and nothing waits


async def test_clients_read_in_their_order_when_others_have_taken_theirs() -> None:
    async with Workbench() as bench:
        waiting, client = WaitingHistory(SIZE), await slow(bench)
        held = hold(waiting, client)
        await settle()
        order: list[int] = []

        async def read(number: int) -> None:
            order.append(number)

        reads = [asyncio.ensure_future(waiting.read(partial(read, number))) for number in range(5)]
        await settle()
        assert order == []
        client.session.resume_writing()
        await asyncio.gather(held, *reads)
        assert order == list(range(5))


async def test_waiting_client_that_is_gone_takes_no_room() -> None:
    async with Workbench() as bench:
        waiting, client = WaitingHistory(SIZE), await slow(bench)
        held = hold(waiting, client)
        await settle()
        first, second = (asyncio.ensure_future(waiting.read(answer)) for _ in range(2))
        await settle()
        first.cancel()
        client.session.resume_writing()
        await held
        await settle()
        assert (first.cancelled(), second.done(), waiting.bytes) == (True, True, 0)


async def test_client_that_takes_all_at_once_leaves_its_room_to_the_next() -> None:
    async with Workbench() as bench:
        waiting, client = WaitingHistory(SIZE), await slow(bench)
        held = hold(waiting, client)
        await settle()
        reads = [asyncio.ensure_future(waiting.read(answer)) for _ in range(10)]
        await settle()
        assert not any(read.done() for read in reads)
        client.session.resume_writing()
        await asyncio.gather(held, *reads)


async def test_client_that_takes_nothing_is_disconnected_when_another_waits_for_room() -> None:
    async with Workbench() as bench:
        waiting, clients = WaitingHistory(2 * SIZE, max_stall=0.0), [await slow(bench) for _ in range(2)]
        held = [hold(waiting, client) for client in clients]
        await settle()
        assert [client.connection.closed for client in clients] == [None, None]
        await waiting.read(answer)
        assert [client.connection.closed for client in clients] == [(1000, "Too slow"), None]
        assert bench.stats.slow_disconnects == 1
        assert waiting.bytes == SIZE
        clients[1].session.resume_writing()
        await asyncio.gather(*held)


async def test_no_limit_makes_nobody_wait() -> None:
    async with Workbench(Limits(ping_interval=0, max_pending_history=0)) as bench:
        waiting, client = WaitingHistory(0), await slow(bench)
        held = hold(waiting, client)
        await settle()
        await waiting.read(answer)
        assert waiting.bytes == SIZE
        client.session.resume_writing()
        await held


class Store:
    """Answers when told to. `running` are the reads in flight."""

    def __init__(self) -> None:
        self.running = self.peak = 0
        self.order: list[int] = []
        self._answers: list[asyncio.Future[None]] = []

    async def read(self, number: int) -> None:
        self.order.append(number)
        self.running += 1
        self.peak = max(self.peak, self.running)
        self._answers.append(asyncio.get_running_loop().create_future())
        try:
            await self._answers[-1]
        finally:
            self.running -= 1

    def answer(self, error: Exception | None = None) -> None:
        """Answer the oldest read in flight."""
        pending = next(answer for answer in self._answers if not answer.done())
        if error is None:
            pending.set_result(None)
        else:
            pending.set_exception(error)


def start(waiting: WaitingHistory, store: Store, count: int) -> list[asyncio.Task[None]]:
    return [asyncio.ensure_future(waiting.read(partial(store.read, number))) for number in range(count)]


async def test_reads_in_flight_count_as_full_answers() -> None:
    waiting, store = WaitingHistory(4 * MAX_ANSWER_BYTES), Store()
    reads = start(waiting, store, 100)
    await settle()
    for _ in reads:
        assert store.running <= 4
        store.answer()
        await settle()
    await asyncio.gather(*reads)
    assert store.peak == 4
    assert store.order == list(range(100))


async def test_limit_below_one_answer_allows_one_read_at_a_time() -> None:
    waiting, store = WaitingHistory(1), Store()
    reads = start(waiting, store, 5)
    await settle()
    for _ in reads:
        store.answer()
        await settle()
    await asyncio.gather(*reads)
    assert (store.peak, store.order) == (1, list(range(5)))


async def test_held_history_and_reads_in_flight_share_the_limit() -> None:
    async with Workbench() as bench:
        waiting, store, client = WaitingHistory(2 * MAX_ANSWER_BYTES), Store(), await slow(bench)
        with waiting.holding(client.session.link, MAX_ANSWER_BYTES):
            reads = start(waiting, store, 4)
            await settle()
            assert store.running == 1
        await settle()
        assert store.running == 2
        for _ in reads:
            store.answer()
            await settle()
        await asyncio.gather(*reads)


async def test_failed_read_leaves_its_room_to_the_next_client() -> None:
    waiting, store = WaitingHistory(MAX_ANSWER_BYTES), Store()
    first, second = start(waiting, store, 2)
    await settle()
    store.answer(Unavailable("gone"))
    await settle()
    assert (type(first.exception()), store.order) == (Unavailable, [0, 1])
    store.answer()
    await second


async def test_cancelled_read_leaves_its_room_to_the_next_client() -> None:
    waiting, store = WaitingHistory(MAX_ANSWER_BYTES), Store()
    first, second = start(waiting, store, 2)
    await settle()
    first.cancel()
    await settle()
    assert store.order == [0, 1]
    store.answer()
    await second


async def test_client_cancelled_at_its_turn_leaves_its_room_to_the_next() -> None:
    waiting, store = WaitingHistory(MAX_ANSWER_BYTES), Store()
    first, second, third = start(waiting, store, 3)
    await settle()
    store.answer()
    asyncio.get_running_loop().call_soon(second.cancel)  # runs when the first read has given its room to the second
    await settle()
    assert (first.done(), second.cancelled(), store.order) == (True, True, [0, 2])
    store.answer()
    await third


async def test_read_that_comes_later_does_not_overtake_a_client_whose_turn_it_is() -> None:
    waiting, store = WaitingHistory(MAX_ANSWER_BYTES), Store()
    reads = start(waiting, store, 2)
    await settle()
    reads[0].add_done_callback(lambda _: reads.append(asyncio.ensure_future(waiting.read(partial(store.read, 2)))))
    store.answer()
    await settle()
    assert store.order == [0, 1]
    store.answer()
    await settle()
    store.answer()
    await asyncio.gather(*reads)
    assert store.order == [0, 1, 2]


async def test_client_that_waits_for_an_unavailable_stream_leaves_its_room_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Workbench(Limits(ping_interval=0, max_pending_history=1)) as bench:
        (receipt,) = await bench.publish("s", "1")
        replay = bench.backend.streams.replay

        async def answer(stream: str, position: Position) -> Replay | Gap:
            if stream == "lost":
                raise Unavailable("no leader")
            return await replay(stream, position)

        monkeypatch.setattr(bench.backend.streams, "replay", answer)
        clients = [await bench.connect() for _ in range(2)]
        for client, stream in zip(clients, ("lost", "s"), strict=True):
            positions = {stream: {"epoch": receipt.epoch, "offset": 0}}
            await client.send(command="subscribe", identifier=public(stream), history={"streams": positions})
        assert clients[0].seen() == ["welcome"]
        assert clients[1].seen() == ["welcome", "confirm_subscription", 1, "confirm_history"]
