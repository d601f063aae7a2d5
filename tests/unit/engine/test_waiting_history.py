"""The bound of history that waits for clients, and who is disconnected when it is reached."""

import asyncio
from functools import partial

from ropewalk.engine.waiting_history import WaitingHistory
from ropewalk.model.history import MESSAGE_OVERHEAD_BYTES
from ropewalk.model.limits import Limits
from ropewalk.model.messages import Registered
from tests.unit.engine.workbench import Client, Workbench, settle

MESSAGES = [Registered("s", b"x" * 800, 1.0, "e", offset) for offset in range(1, 11)]
SIZE = 10 * (800 + MESSAGE_OVERHEAD_BYTES) + 5


async def slow(bench: Workbench) -> Client:
    client = await bench.connect()
    client.session.pause_writing()
    return client


async def answer() -> None:
    pass


def hold(waiting: WaitingHistory, client: Client) -> asyncio.Task[None]:
    return asyncio.ensure_future(waiting.drained(client.session.link, MESSAGES, 5))


async def test_history_of_a_slow_client_is_counted_until_it_is_taken() -> None:
    async with Workbench() as bench:
        waiting, client = WaitingHistory(2 * SIZE), await slow(bench)
        held = hold(waiting, client)
        await settle()
        assert waiting.bytes == SIZE
        client.session.resume_writing()
        await held
        assert waiting.bytes == 0
        await waiting.drained(client.session.link, MESSAGES, 5)  # it is not slow, and nothing waits


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
