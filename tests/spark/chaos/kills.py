"""The kills: which, when, and what they hit. The choices depend on the seed, the timing on the machine."""

import asyncio
import os
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from tests.spark.chaos.world import World

TIMEOUT = 240.0
MAX_PAUSE_SECONDS = 0.8
# Right behind a commit is where a second one would come from, so half of the kills wait for one.
AIMED_TIMEOUT = 15.0
# In this proportion; a driver takes some seconds to start, so that it is killed less often than the others.
KINDS = ("worker", "server", "JVM", "worker", "server", "driver")


def seed() -> int:
    return int(os.environ.get("CHAOS_SEED") or random.SystemRandom().randrange(1 << 32))


async def at_once() -> None:
    """Waits for nothing."""


async def until(condition: Callable[[], bool], what: str, world: World) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not await asyncio.to_thread(condition):
        assert time.monotonic() < deadline, f"not in {TIMEOUT:.0f} s: {what}\n{await asyncio.to_thread(world.describe)}"
        await asyncio.sleep(0.05)


class Killer:
    """Kills one process after another. Before each kill, a driver has completed a batch with the process killed before."""

    def __init__(self, world: World, chance: random.Random, kinds: Sequence[str] = KINDS) -> None:
        self.kills: Counter[str] = Counter()
        self._world = world
        self._chance = chance
        self._kinds = kinds
        self._spared = list(world.queries)
        self._started = time.monotonic()

    async def run(self, count: int, before_each: Callable[[], Awaitable[None]] = at_once) -> None:
        deck = [self._kinds[number % len(self._kinds)] for number in range(count)]
        self._chance.shuffle(deck)
        for number, kind in enumerate(deck, 1):
            await before_each()
            hit = await (self._first_strike(kind) if kind == "JVM" and self._spared else self._strike(kind))
            self.kills[kind] += 1
            print(f"  {time.monotonic() - self._started:6.1f} s  {number:3}  {kind:7}  {hit}", flush=True)

    async def _first_strike(self, kind: str) -> str:
        """Each driver dies at least once right behind a commit of its sink, before Spark has noted that."""
        driver = self._spared.pop()
        await until(partial(self._world.at_work, driver), f"the driver {driver} is at work", self._world)
        return await asyncio.to_thread(self._kill, kind, driver, True)

    async def _strike(self, kind: str) -> str:
        await until(lambda: bool(self._at_work()), "a driver is at work", self._world)
        driver, aimed = self._chance.choice(self._at_work()), self._chance.random() < 0.5
        return await asyncio.to_thread(self._kill, kind, driver, aimed)

    def _at_work(self) -> list[str]:
        return [driver for driver in self._world.queries if self._world.at_work(driver)]

    def _kill(self, kind: str, driver: str, aimed: bool) -> str:
        self._world.drivers[driver].aim()
        moment = self._wait_for_a_commit(kind, driver) if aimed else self._wait()
        match kind:
            case "server":
                hit = self._world.kill_server()
            case "tending":
                hit = self._world.kill_tending()
            case "worker":
                hit = self._world.kill_worker(driver, self._chance)
            case _:
                hit = self._world.kill_driver(driver, jvm=kind == "JVM")
        return f"{moment:11}  {hit}"

    def _wait(self) -> str:
        time.sleep(self._chance.random() * MAX_PAUSE_SECONDS)
        return "anywhere"

    def _wait_for_a_commit(self, kind: str, driver: str) -> str:
        """The server dies while it publishes a transaction, the others when their sink has committed."""
        before, deadline = self._world.commits(driver), time.monotonic() + AIMED_TIMEOUT
        while not (self._world.decided() if kind == "server" else self._world.commits(driver) > before):
            if time.monotonic() > deadline:
                return "anywhere"
            time.sleep(0.001)
        return "at a commit"
