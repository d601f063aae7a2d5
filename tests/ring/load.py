"""Publishers and receivers that run while a ring changes."""

import asyncio
import contextlib
from collections import defaultdict

import aiohttp

from tests.cable import Cable, Frame
from tests.ring.ring import Ring
from tests.server import RunningServer
from tests.waiting import until


class Load:
    """Publishes 0, 1, 2, … to each of some streams at each of some nodes. A response other than 201 is a failure.

    `positions` has the epoch and offset of each message by stream.
    """

    def __init__(self, ring: Ring, names: str, streams: list[str]) -> None:
        self.positions: dict[str, list[tuple[str, int]]] = {stream: [] for stream in streams}
        self._rounds = dict.fromkeys(names, 0)
        self._ending = False
        self._publishing = [asyncio.ensure_future(self._publish(ring.nodes[name], name)) for name in names]

    @property
    def total(self) -> int:
        return sum(map(len, self.positions.values()))

    async def _publish(self, node: RunningServer, name: str) -> None:
        async with aiohttp.ClientSession() as http:
            while not self._ending:
                number = self._rounds[name]
                for stream in self.positions:
                    body = {"stream": stream, "data": number, "uid": f"{name}/{stream}/{number}"}
                    async with http.post(f"{node.url}/_broadcast", json=body) as response:
                        assert response.status == 201, await response.text()  # it may wait, but not fail
                        (position,) = (await response.json())["publications"]
                    self.positions[stream].append((position["epoch"], position["offset"]))
                self._rounds[name] += 1

    async def one_more_round(self) -> None:
        """Wait until each publisher has published to all streams after this call."""
        wanted = {name: rounds + 2 for name, rounds in self._rounds.items()}
        await until(lambda: self._failed() or all(self._rounds[name] >= wanted[name] for name in wanted), "publications")
        if self._failed():
            await asyncio.gather(*self._publishing)

    def _failed(self) -> bool:
        return any(task.done() for task in self._publishing)

    async def end(self) -> None:
        self._ending = True
        await asyncio.gather(*self._publishing)


class Receiver:
    """Reads the messages of a client all the time, so that it is not a slow consumer. Any other frame is a failure."""

    def __init__(self, client: Cable) -> None:
        self._client = client
        self._frames: defaultdict[str, list[Frame]] = defaultdict(list)
        self._task = asyncio.ensure_future(self._receive())

    async def _receive(self) -> None:
        while True:
            frame = await self._client.expect("message")
            self._frames[frame["stream_id"]].append(frame)

    async def receive(self, count: int) -> dict[str, list[Frame]]:
        """Wait for this many messages and stop; returns the messages by stream."""
        await until(lambda: self._task.done() or sum(map(len, self._frames.values())) >= count, "messages")
        if self._task.done():
            self._task.result()
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        return self._frames
