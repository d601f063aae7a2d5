"""The JavaScript client in a storm: its connections are cut and its server is restarted while messages are published.

Every message is received once and in order, or covered by a gap.
"""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.clients.script import Event, Script
from tests.server import running_server

pytestmark = pytest.mark.needs_node

CLIENTS = 4
STREAMS = ("storm/a", "storm/b")
SUBSCRIPTIONS: dict[str, dict[str, Any]] = {
    "start": {"from": "start"},
    "live": {"from": "live"},
    "last": {"from": {"last": 5}},
    "loop": {"from": "start", "iterate": True, "queue": 20},
}
CUTS = ("fin", "reset", "silent")
PAUSE = 0.005  # seconds between two publications: the clients are under test here, not the publisher


class Harbor:
    """A server that can be restarted on its port. `server` is the present one."""

    def __init__(self, flags: tuple[str, ...], stack: AsyncExitStack) -> None:
        self._flags = flags
        self._stack = stack
        self.server = stack.enter_context(running_server(*flags))
        self.url = self.server.url

    def restart(self, kill: bool) -> None:
        if kill:
            self.server.kill()
        else:
            self.server.stop()
        self.server = self._stack.enter_context(running_server(*self._flags, "--port", str(self.server.port)))


class Publishers:
    """One for each stream. Each message is repeated under its uid until the server has acknowledged it."""

    def __init__(self, url: str) -> None:
        self.receipts: dict[str, list[tuple[str, int]]] = {stream: [] for stream in STREAMS}
        self._url = url
        self._enough = False

    @property
    def count(self) -> int:
        return min(map(len, self.receipts.values()))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(self._publish(stream)) for stream in STREAMS]
        try:
            yield
        finally:
            self._enough = True
            await asyncio.gather(*tasks)

    async def _publish(self, stream: str) -> None:
        async with aiohttp.ClientSession() as http:
            while not self._enough:
                number = len(self.receipts[stream]) + 1
                await self._publish_one(http, {"stream": stream, "data": number, "uid": f"{stream} {number}"})
                await asyncio.sleep(PAUSE)

    async def _publish_one(self, http: aiohttp.ClientSession, body: Event) -> None:
        while True:
            try:
                async with http.post(f"{self._url}/api/publish", data=json.dumps(body)) as response:
                    if response.status == 201:
                        [receipt] = (await response.json())["publications"]
                        self.receipts[body["stream"]].append((receipt["epoch"], receipt["offset"]))
                        return
            except (aiohttp.ClientError, OSError):
                pass  # it is restarting
            await asyncio.sleep(PAUSE)

    async def more(self, count: int) -> None:
        wanted = self.count + count
        while self.count < wanted:
            await asyncio.sleep(PAUSE)


def received(script: Script, client: str, channel: str) -> list[Event]:
    """Messages and gaps of a subscription, in order."""
    kinds = ("item",) if channel.startswith("loop") else ("message", "gap")
    return [
        event
        for event in script.events
        if event["client"] == client and event.get("channel") == channel and event["event"] in kinds
    ]


def faults(events: list[Event], from_start: bool) -> list[str]:
    """Messages that were received twice, out of order, or after a gap that was not reported."""
    found: list[str] = []
    seen: set[tuple[str, int]] = set()
    before = ("", 0) if from_start else None  # None: the next message may have any position
    for event in events:
        gap = event.get("gap")
        position = (gap or event).get("position")
        now = (position["epoch"], position["offset"]) if position else None
        if not gap and now is not None:
            if now in seen or not follows(before, now):
                found.append(f"{now} after {before}")
            seen.add(now)
        before = now
    return found


def follows(before: tuple[str, int] | None, now: tuple[str, int]) -> bool:
    """An empty epoch is the beginning of any epoch."""
    return before is None or (before[0] in ("", now[0]) and now[1] == before[1] + 1)


async def storm(script: Script, harbor: Harbor, publishers: Publishers, rounds: int, restarts: int, seed: int) -> None:
    chance = random.Random(seed)
    names = [f"client{number}" for number in range(CLIENTS)]
    for name in names:
        await script.order("open", name, url=harbor.url, options={"minDelay": 10, "maxDelay": 100, "pingInterval": 1})
    async with publishers.running():
        await publishers.more(10)
        for name in names:
            for stream in STREAMS:
                for channel, options in SUBSCRIPTIONS.items():
                    await script.order("subscribe", name, channel=f"{channel} {stream}", stream=stream, **options)
        for number in range(1, rounds + 1):
            await publishers.more(chance.randint(1, 20))
            for name in chance.sample(names, CLIENTS // 2):
                await script.order("cut", name, how=chance.choice(CUTS))
            if number % (rounds // restarts) == 0:
                await asyncio.to_thread(harbor.restart, chance.random() < 0.5)
        await publishers.more(10)
    await all_at_the_tip(script, names, publishers)


async def all_at_the_tip(script: Script, names: list[str], publishers: Publishers) -> None:
    behind = {
        (name, f"{channel} {stream}"): publishers.receipts[stream][-1]
        for name in names
        for stream in STREAMS
        for channel in SUBSCRIPTIONS
    }

    def caught_up() -> bool:
        for event in reversed(script.events):
            place = event["client"], event.get("channel", "")
            position = event.get("position") if event["event"] in ("message", "item") and "data" in event else None
            if position and behind.get(place) == (position["epoch"], position["offset"]):
                del behind[place]
            if not behind:
                return True
        return False

    await script.until(caught_up, f"all at the tip, not {behind}")


LENGTHS = [
    pytest.param(8, 2, id="short"),
    pytest.param(60, 12, id="long", marks=pytest.mark.tier("all")),
]


@pytest.mark.parametrize(("rounds", "restarts"), LENGTHS)
async def test_nothing_is_lost_in_a_storm_with_a_journal(ropewalk: Script, tmp_path: Path, rounds: int, restarts: int) -> None:
    seed = random.randrange(2**32)
    async with AsyncExitStack() as stack:
        harbor = Harbor(("--public", "--data_dir", str(tmp_path), "--history_limit", "100000", "--history_ttl", "3600"), stack)
        publishers = Publishers(harbor.url)
        await storm(ropewalk, harbor, publishers, rounds, restarts, seed)
        for number in range(CLIENTS):
            for stream in STREAMS:
                for channel in SUBSCRIPTIONS:
                    events = received(ropewalk, f"client{number}", f"{channel} {stream}")
                    assert [event for event in events if event.get("gap")] == [], seed
                    assert faults(events, channel in ("start", "loop")) == [], seed
                    offsets = [event["position"]["offset"] for event in events]
                    assert [event["data"] for event in events] == offsets, seed
                    assert offsets[-1] == len(publishers.receipts[stream])


@pytest.mark.parametrize(("rounds", "restarts"), LENGTHS)
async def test_no_gap_is_silent_in_a_storm_without_a_journal(ropewalk: Script, rounds: int, restarts: int) -> None:
    seed = random.randrange(2**32)
    async with AsyncExitStack() as stack:
        harbor = Harbor(("--public", "--history_limit", "5"), stack)
        publishers = Publishers(harbor.url)
        await storm(ropewalk, harbor, publishers, rounds, restarts, seed)
        gaps = 0
        for number in range(CLIENTS):
            for stream in STREAMS:
                for channel in SUBSCRIPTIONS:
                    events = received(ropewalk, f"client{number}", f"{channel} {stream}")
                    assert faults(events, channel in ("start", "loop")) == [], seed
                    gaps += len([event for event in events if event.get("gap")])
        assert gaps > restarts
