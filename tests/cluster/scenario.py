"""The cluster scenario: nodes on one engine, clients that move between them, publishers at all of them, and faults.

It also runs against one node of several processes. Clients and publishers fill one record, which the checker reads at the end.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import quote

import aiohttp
from yarl import URL

from tests.cluster.broky_clients import BrokyClusterPublisher, RoamingBrokyClient
from tests.cluster.checker import Anomaly, Message, Position, StreamHistory, anomalies
from tests.cluster.clients import RoamingClient
from tests.cluster.faults import Fault, NamedAddress
from tests.cluster.publishers import SETTLE_SECONDS, STREAMS, ClusterPublisher, EntryPublisher, Kicker, World, Writer


class Servers(Protocol):
    """The servers under test. Clients and publishers use the `nodes`. All that are `asked` at the end must answer the same.
    `lossy`: acknowledged data may be lost. `entries_port`: of the Redis from which `redisx` reads, 0 without."""

    @property
    def nodes(self) -> Sequence[NamedAddress]: ...
    @property
    def asked(self) -> Sequence[NamedAddress]: ...
    @property
    def lossy(self) -> bool: ...
    @property
    def entries_port(self) -> int: ...

    def a_round(self, chance: random.Random) -> list[Fault]:
        """Each kind of fault, in any order."""
        ...

    async def inflict(self, fault: Fault, counts: Counter[str]) -> None:
        """Returns once it is over."""
        ...


@dataclass(frozen=True)
class Size:
    """`clients` and `publishers`: over WebSocket and HTTP; over TCP there are half as many. `pause`: seconds between two
    requests of a publisher, on average. `seconds`: for how long there are faults, at least one round of all kinds."""

    clients: int
    publishers: int
    pause: float
    seconds: float


async def run_scenario(servers: Servers, size: Size, seed: int) -> tuple[World, list[Anomaly]]:
    """Returns the record and counts of the run, and the anomalies in it."""
    chances = random.Random(seed)
    world = World(servers.nodes, size.clients)
    clients = [RoamingClient(f"c{number}", world, _chance(chances)) for number in range(size.clients)]
    publishers = [ClusterPublisher(f"p{number}", world, _chance(chances), size.pause) for number in range(size.publishers)]
    others = [RoamingBrokyClient(f"t{number}", world, _chance(chances)) for number in range(size.clients // 2)]
    pushers = [
        BrokyClusterPublisher(f"b{number}", world, _chance(chances), size.pause) for number in range(size.publishers // 2)
    ]
    all_clients: list[RoamingClient | RoamingBrokyClient] = [*clients, *others]
    kicker = Kicker(world, [client.name for client in all_clients], _chance(chances), 1.0)
    port = servers.entries_port
    adders = [EntryPublisher(f"x{number}", world, port, _chance(chances), size.pause) for number in range(2 if port else 0)]
    faults_over = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        for client in all_clients:
            group.create_task(client.run())
        writers: list[Writer] = [*publishers, *pushers, *adders, kicker]
        writing = [group.create_task(writer.run(faults_over)) for writer in writers]
        await _faults(servers, size.seconds, world, chances)
        await _enough_resumed(world, size.clients)
        faults_over.set()
        await asyncio.wait(writing)
        for adding in adders:
            await adding.taken(SETTLE_SECONDS)
        await publishers[0].end()
        world.calm.set()
        await _settled(servers, world, clients, others)
        world.over.set()
    for node in servers.asked:
        world.record.histories[node.name] = {stream: await _history(node, stream) for stream in STREAMS}
    return world, anomalies(world.record, servers.lossy)


def _chance(chances: random.Random) -> random.Random:
    return random.Random(chances.random())


async def _faults(servers: Servers, seconds: float, world: World, chance: random.Random) -> None:
    began = time.monotonic()
    while True:
        for fault in servers.a_round(chance):
            await asyncio.sleep(0.5 + chance.random())
            await servers.inflict(fault, world.counts)
        if time.monotonic() - began > seconds:
            return


async def _enough_resumed(world: World, clients: int) -> None:
    """Wait until every client, on average, has resumed its session. How many did during the faults depends on the machine."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while max(world.counts[f"resumed on {where}"] for where in ("another node", "the same node")) <= clients:
        if time.monotonic() > deadline:
            return  # the test reports it
        await asyncio.sleep(0.1)


async def _settled(
    servers: Servers, world: World, clients: Sequence[RoamingClient], others: Sequence[RoamingBrokyClient]
) -> None:
    """Wait until every client has everything and all nodes list the right members. Later differences are anomalies."""
    here = [client for client in clients if client.here]
    awaited: list[RoamingClient | RoamingBrokyClient] = [*here, *others]
    record = world.record
    record.here = {client.name for client in awaited}
    record.members = {stream: {client.name for client in here if client.room == stream} for stream in STREAMS}
    deadline = time.monotonic() + SETTLE_SECONDS
    while time.monotonic() < deadline:
        record.presence = {node.name: {stream: await members_at(node, stream) for stream in STREAMS} for node in servers.asked}
        right = all(answer == record.members for answer in record.presence.values())
        if right and all(client.has_everything() for client in awaited):
            return
        await asyncio.sleep(0.3)


async def _history(node: NamedAddress, stream: str) -> StreamHistory:
    messages: list[Message] = []
    after: int | None = 0
    while after is not None:
        page = await _answer(node, f"streams/{quote(stream, safe='')}/history?after={after}&limit=1000")
        messages += [
            Message(Position(page["epoch"], each["offset"]), each["message"].split("|")[0]) for each in page["messages"]
        ]
        after = page["next"]
    return StreamHistory(page["epoch"], tuple(messages))


async def members_at(node: NamedAddress, stream: str) -> set[str]:
    page = await _answer(node, f"presence/{quote(stream, safe='')}/users?limit=1000")
    return {each["id"] for each in page["records"]}


async def _answer(node: NamedAddress, path: str) -> dict[str, Any]:
    """A page of the REST API. A node may need a moment to notice that the engine is back."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while True:
        async with aiohttp.ClientSession() as http, http.get(URL(f"{node.url}/api/{path}", encoded=True)) as response:
            page: dict[str, Any] = await response.json()
        if response.status == 200:
            return page
        assert response.status == 503, page
        assert time.monotonic() < deadline, page
        await asyncio.sleep(0.2)


def figures(world: World, size: Size) -> str:
    record = world.record
    acked = sum(publication.acked is not None for publication in record.publications.values())
    lines = [
        f"{size.clients} clients with {len(record.lives)} connections, {len(record.publications)} publications ({acked} acked)",
        *(f"{count:8d} {name}" for name, count in sorted(world.counts.items())),
    ]
    return "\n  ".join(lines)
