"""A ring with journals whose nodes are killed while shards move: each acknowledged message is kept exactly once."""

import asyncio
import contextlib
import os
import random
import signal
import time
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest

from tests.cable import cable
from tests.process_tree import children
from tests.ring.ring import CHANGES, Ring, running_ring, streams_of_all_shards
from tests.server import publish

FAULTS = 8
LARGE_MESSAGES, LARGE_BYTES = 20, 100_000
SECONDS = 120.0  # matters only where a test fails


class Publisher:
    """Sends each message with a uid, to any running node, until it is acknowledged."""

    def __init__(self, ring: Ring, name: str, streams: list[str], chance: random.Random) -> None:
        self._ring = ring
        self._name = name
        self._streams = streams
        self._chance = chance
        self.acknowledged: dict[str, dict[str, tuple[str, int]]] = {stream: {} for stream in streams}
        self.ending = False

    async def run(self) -> None:
        number = 0
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as http:
            while not self.ending:
                number += 1
                stream, uid = self._chance.choice(self._streams), f"{self._name}-{number}"
                deadline = time.monotonic() + SECONDS
                while (position := await self._send(http, stream, uid)) is None:
                    assert time.monotonic() < deadline, f"{stream}: no publication is acknowledged"
                    await asyncio.sleep(0.05)
                self.acknowledged[stream][uid] = position

    async def _send(self, http: aiohttp.ClientSession, stream: str, uid: str) -> tuple[str, int] | None:
        node = self._chance.choice(list(self._ring.nodes.values()))
        body = {"stream": stream, "data": uid, "uid": uid}
        try:
            async with http.post(f"{node.url}/_broadcast", json=body) as response:
                if response.status != 201:
                    assert response.status == 503, await response.text()
                    return None
                (position,) = (await response.json())["publications"]
        except (aiohttp.ClientError, TimeoutError):
            return None
        return position["epoch"], position["offset"]


@pytest.fixture
def ring(request: pytest.FixtureRequest) -> Iterator[Ring]:
    """The parameter is the number of workers by node."""
    with running_ring("abc", "--history_limit", "100000", journal=True, workers=request.param) as ring:
        yield ring


async def history(ring: Ring, stream: str) -> list[tuple[str, int, Any]]:
    async with cable(ring.nodes["a"]) as client:
        frames = await client.subscribe(stream, history={"since": 1})
        return [(frame["epoch"], frame["offset"], frame["message"]) for frame in frames]


async def move_shards(ring: Ring, chance: random.Random) -> None:
    """Add the fourth node, or remove it. The node that gets the request may refuse it until it knows the ring."""
    node = chance.choice([ring.nodes[name] for name in "abc"])
    with contextlib.suppress(aiohttp.ClientError):  # its worker was killed
        async with aiohttp.ClientSession(headers=CHANGES) as http:
            async with http.get(f"{node.url}/api/ring") as response:
                report = await response.json()
            if response.status == 503:  # its store was killed
                return
            is_member = {member["name"]: member["leaving"] for member in report["nodes"]}.get("d") is False
            change = {"remove": "d"} if is_member else {"add": f"d=127.0.0.1:{ring.ring_ports['d']}"}
            async with http.post(f"{node.url}/api/ring", json=change) as response:
                assert response.status in (200, 409, 503), await response.text()


@pytest.mark.parametrize(("seed", "ring"), [(1, {}), (2, {"a": 2, "b": 2, "d": 2})], indirect=["ring"])
async def test_no_acknowledged_message_is_lost_while_nodes_die_and_shards_move(ring: Ring, seed: int) -> None:
    chance = random.Random(seed)
    streams = streams_of_all_shards()
    await ring.healthy()
    ring.join("d")
    for stream in streams:  # enough for a slow handover
        for number in range(LARGE_MESSAGES):
            await publish(ring.nodes["a"], stream, "x" * LARGE_BYTES, uid=f"large-{number}")
    publishers = [Publisher(ring, name, streams, random.Random(f"{seed}{name}")) for name in "xyz"]
    running = [asyncio.ensure_future(publisher.run()) for publisher in publishers]
    for _ in range(FAULTS):
        await move_shards(ring, chance)
        await asyncio.sleep(chance.uniform(0.0, 0.5))
        name = chance.choice("abcd")
        if (processes := sorted(children(ring.nodes[name]))) and chance.random() < 0.5:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(chance.choice(processes), signal.SIGKILL)  # its store or a worker; the supervisor restarts it
        else:
            ring.kill(name)
            await asyncio.sleep(chance.uniform(0.0, 0.5))
            await asyncio.get_running_loop().run_in_executor(None, ring.start, name)
        assert not any(task.done() for task in running), await asyncio.gather(*running)
    for publisher in publishers:
        publisher.ending = True
    await asyncio.gather(*running)
    await ring.healthy(names="abc")  # the fourth may be removed
    for stream in streams:
        kept = await history(ring, stream)
        offsets = [offset for _, offset, _ in kept]
        assert offsets == list(range(1, len(kept) + 1)), stream
        assert len({epoch for epoch, _, _ in kept}) == 1, stream
        uids = [uid for _, _, uid in kept[LARGE_MESSAGES:]]
        assert len(set(uids)) == len(uids), f"{stream} has a duplicate"
        at = {uid: (epoch, offset) for epoch, offset, uid in kept}
        for publisher in publishers:
            for uid, position in publisher.acknowledged[stream].items():
                assert at.get(uid) == position, (stream, uid, position, at.get(uid))
