"""Two nodes on one NATS server: clients on any of them get everything once and in order, whatever happens to NATS."""

import asyncio
import time
from collections.abc import Iterator

import pytest

from ropewalk.client import Message, Stream, connect
from tests.cable import Cable, Closed, cable
from tests.server import RunningServer, publish, running_server
from tests.services import NatsServer, nats_server

SECONDS = 60
KILLS = 3
BETWEEN_KILLS = 40


@pytest.fixture
def nats() -> Iterator[NatsServer]:
    with nats_server() as server:
        yield server


@pytest.fixture
def nodes(nats: NatsServer) -> Iterator[list[RunningServer]]:
    flags = ("--public", "--broker", "nats", "--nats_servers", nats.url, "--nats_shards", "2")
    with running_server(*flags, "--node_id", "one") as one, running_server(*flags, "--node_id", "two") as two:
        yield [one, two]


async def published(node: RunningServer, number: int) -> None:
    """Sent again until it is registered."""
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            await publish(node, "news", str(number), uid=f"u{number}")
            return
        except AssertionError:
            assert time.monotonic() < deadline, node.log()
            await asyncio.sleep(0.1)


async def listen(stream: Stream, count: int) -> list[Message]:
    found: list[Message] = []
    async with asyncio.timeout(SECONDS):
        while len(found) < count:
            message = await anext(stream)
            assert isinstance(message, Message), message
            found.append(message)
    return found


async def test_everything_comes_once_and_in_order_to_both_nodes_while_nats_is_killed(
    nodes: list[RunningServer], nats: NatsServer
) -> None:
    total = KILLS * BETWEEN_KILLS
    async with connect(nodes[0].url) as one, connect(nodes[1].url) as two:
        listening = [asyncio.ensure_future(listen(await client.subscribe("news"), total)) for client in (one, two)]
        for number in range(total):
            if number % BETWEEN_KILLS == BETWEEN_KILLS // 2:
                nats.kill()
                await asyncio.to_thread(nats.start)
            await published(nodes[number % 2], number)
        for received in await asyncio.gather(*listening):
            assert [message.data for message in received] == list(range(total))
            assert [message.offset for message in received] == list(range(1, total + 1))
            assert len({message.epoch for message in received}) == 1


async def test_a_session_goes_on_at_another_node_also_while_the_first_believes_in_it(nodes: list[RunningServer]) -> None:
    async with cable(nodes[0]) as former:
        await former.subscribe("news", history={"since": 1})
        await published(nodes[1], 1)
        await former.until("message")
        successor = await restored_at(nodes[1], former)
        successor.positions = former.positions
        await published(nodes[0], 2)
        assert [frame["message"] for frame in await successor.ask_history("news")] == [2]
        await successor.close()
        with pytest.raises(Closed, match="Session resumed elsewhere"):
            await former.until("never")


async def restored_at(node: RunningServer, former: Cable) -> Cable:
    """As soon as the store has heard of the session, which is written a moment after it begins."""
    deadline = time.monotonic() + SECONDS
    while True:
        client = await Cable.connect(node.cable, sid=former.sid)
        welcome = await client.until("welcome")
        if welcome.get("restored"):
            return client
        await client.close()
        assert time.monotonic() < deadline
