"""`@anycable/core` clients behind a proxy that moves them between the nodes of a cluster: no message or member is lost."""

import asyncio
import itertools

import pytest

from tests.clients.publishers import publish
from tests.clients.script import Client, Script, offsets, texts
from tests.cluster.faults import Cluster, EngineMaker, nats_engine, redis_engine, running_cluster
from tests.scenarios.relay import Relay, relay_to

pytestmark = [pytest.mark.needs_node, pytest.mark.tier("all")]

MOVES = 6
NAMES = ("alice", "carol", "dave")


async def arrive(script: Script, url: str, name: str, stream: str) -> Client:
    client = await script.connect(name, url, reconnectAfter=20)
    await client.subscribe("room", stream=stream)
    await client.order("join", channel="room", id=name, info={"name": name})
    await client.sees("presence", type="join", id=name)
    return client


async def members(client: Client, times: int) -> object:
    await client.order("members", channel="room")
    return (await client.sees("members", times=times))["members"]


class Publishing:
    """Publishes one message after another, each at the next node, until it is stopped."""

    def __init__(self, cluster: Cluster, stream: str) -> None:
        self._cluster = cluster
        self._stream = stream
        self._enough = asyncio.Event()
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> int:
        for count, node in enumerate(itertools.cycle(self._cluster.nodes), start=1):
            await publish(node.process, self._stream, count)
            if self._enough.is_set():
                return count
        raise AssertionError("a cycle has no end")

    async def stop(self) -> int:
        """Returns the number of messages."""
        self._enough.set()
        return await self._task


async def move(relay: Relay, port: int, clients: list[Client], how: str) -> None:
    """To another node: after broken links, or while the old node still has the connections."""
    relay.port = port
    if how == "break":
        relay.break_links()
        return
    for client in clients:
        await client.order("cut", how="stall")


@pytest.mark.parametrize("engine", [redis_engine, nats_engine])
async def test_clients_that_move_between_nodes_miss_no_message_and_stay_present(
    anycable: Script, stream: str, engine: EngineMaker
) -> None:
    async with (
        engine() as chosen,
        running_cluster(chosen, flags=("--presence_ttl", "60s")) as cluster,
        relay_to(cluster.nodes[0].port) as relay,
    ):
        bob = await arrive(anycable, cluster.nodes[2].cable, "bob", stream)
        url = relay.url.replace("http", "ws", 1) + "/cable"
        moved = [await arrive(anycable, url, name, stream) for name in NAMES]
        present = {name: {"name": name} for name in ("bob", *NAMES)}
        assert await members(bob, 1) == present

        publishing = Publishing(cluster, stream)
        try:
            for times in range(1, MOVES + 1):
                await move(relay, cluster.nodes[times % 3].port, moved, ("break", "stall")[times % 2])
                for client in moved:
                    await client.sees("connect", times=times + 1)
                    await client.gets("room", len(client.all("message", channel="room")) + 5)
        finally:
            total = await publishing.stop()

        for client in (bob, *moved):
            received = await client.gets("room", total)
            assert offsets(received) == texts(received) == list(range(1, total + 1))
            assert client.frames("reject_history") == []
        for client in moved:
            assert len(client.all("connect")) == 1 + MOVES
        assert await members(bob, 2) == await members(moved[0], 1) == present
        assert [event["id"] for event in bob.all("presence", type="join")] == ["bob", *NAMES]
        assert bob.all("presence", type="leave") == []
