"""The kills: which, when, and what they hit. The seed decides the choices; the machine decides the rest."""

import asyncio
import os
import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

from tests.spark.chaos.world import QUERIES, World

KILLS = int(os.environ.get("CHAOS_KILLS", "20"))
PATIENCE = 240.0
LONGEST_PAUSE = 0.8
# Right behind a commit is where a second one would come from, so half of the kills wait for one.
AIMED_PATIENCE = 5.0
AIMED_PAUSE = 0.03
# In this proportion; a driver takes some seconds to start, so that it is killed less often than the others.
KINDS = ("worker", "server", "JVM", "worker", "server", "driver")


def seed() -> int:
    return int(os.environ.get("CHAOS_SEED") or random.SystemRandom().randrange(1 << 32))


async def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not await asyncio.to_thread(condition):
        assert time.monotonic() < deadline, f"not in {PATIENCE:.0f} s: {what}"
        await asyncio.sleep(0.05)


class Killer:
    """Kills one after another. Before each of them, a driver has done a batch with whatever was killed before."""

    def __init__(self, world: World, chance: random.Random) -> None:
        self.kills: Counter[str] = Counter()
        self._world = world
        self._chance = chance
        self._started = time.monotonic()

    async def run(self, count: int) -> None:
        deck = [KINDS[number % len(KINDS)] for number in range(count)]
        self._chance.shuffle(deck)
        for number, kind in enumerate(deck, 1):
            await until(lambda: bool(self._at_work()), "a driver is at work")
            driver = self._chance.choice(self._at_work())
            await asyncio.to_thread(self._world.drivers[driver].aim)
            moment = await self._moment(driver)
            told = await asyncio.to_thread(self._kill, kind, driver)
            self.kills[kind] += 1
            print(f"  {time.monotonic() - self._started:6.1f} s  {number:3}  {kind:6}  {moment:8}  {told}", flush=True)

    def _at_work(self) -> list[str]:
        return [driver for driver in QUERIES if self._world.at_work(driver)]

    def _kill(self, kind: str, driver: str) -> str:
        match kind:
            case "server":
                return self._world.kill_server()
            case "worker":
                return self._world.kill_worker(driver, self._chance)
            case _:
                return self._world.kill_driver(driver, jvm=kind == "JVM")

    async def _moment(self, driver: str) -> str:
        if self._chance.random() < 0.5:
            await asyncio.sleep(self._chance.random() * LONGEST_PAUSE)
            return "anywhere"
        before = self._world.footprint(driver)
        with suppress(TimeoutError):
            async with asyncio.timeout(AIMED_PATIENCE):
                while self._world.footprint(driver) == before:
                    await asyncio.sleep(0.001)
        await asyncio.sleep(self._chance.random() * AIMED_PAUSE)
        return "aimed"
