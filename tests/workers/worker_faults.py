"""One node of several processes, and a seeded plan of faults of its workers and its store process."""

import asyncio
import contextlib
import os
import random
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tests.cluster.faults import FLAGS, LEASE_SECONDS, Fault, NamedAddress
from tests.process_tree import store, workers
from tests.server import RunningServer, running_server
from tests.waiting import until_logged

WORKERS = 4
READERS = 4  # each over its own connection, to any worker

WORKER_FAULTS = (
    *("kill a worker", "kill two workers", "kill all workers"),
    *("pause a worker", "replace the workers", "kill a worker during a replacement"),
)
STORE_FAULTS = ("kill the store", "pause the store", "kill the store and a worker", "kill a worker", "pause a worker")


class WorkersNode(NamedTuple):
    """Implements `scenario.Servers`."""

    server: RunningServer
    faults: Sequence[str]
    lossy: bool
    entries_port: int = 0

    @property
    def nodes(self) -> Sequence[NamedAddress]:
        return [NamedAddress("the node", self.server.url)]

    @property
    def asked(self) -> Sequence[NamedAddress]:
        return [NamedAddress(f"reader {number}", self.server.url) for number in range(READERS)]

    def a_round(self, chance: random.Random) -> list[Fault]:
        """A pause is sometimes longer than the lease of a worker."""
        kinds = list(self.faults)
        chance.shuffle(kinds)
        pauses = (1.0, LEASE_SECONDS + 1)
        return [Fault(kind, chance.randrange(WORKERS), chance.choice(pauses)) for kind in kinds]

    async def inflict(self, fault: Fault, counts: Counter[str]) -> None:
        counts[fault.kind] += 1
        running = sorted(workers(self.server))
        running = running[fault.target :] + running[: fault.target]
        match fault.kind:
            case "kill a worker":
                await self._kill(running[:1], counts)
            case "kill two workers":
                await self._kill(running[:2], counts)
            case "kill all workers":
                await self._kill(running, counts)
            case "kill the store":
                await self._kill([store(self.server)], counts)
            case "kill the store and a worker":
                await self._kill([store(self.server), running[0]], counts)
            case "pause a worker":
                await _pause(running[0], fault.seconds)
            case "pause the store":
                await _pause(store(self.server), fault.seconds)
            case "replace the workers":
                await self._renew([], counts)
            case "kill a worker during a replacement":
                await self._renew(running[:1], counts)

    async def _kill(self, processes: Sequence[int], counts: Counter[str]) -> None:
        counts["processes killed"] += len(processes)
        before = self.server.log().count("serves again")
        for pid in processes:
            os.kill(pid, signal.SIGKILL)
        await until_logged(self.server, "serves again", before + len(processes))

    async def _renew(self, killed: Sequence[int], counts: Counter[str]) -> None:
        counts["processes killed"] += len(killed)
        before = self.server.log().count("all workers were replaced")
        self.server.process.send_signal(signal.SIGHUP)
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
        await until_logged(self.server, "all workers were replaced", before + 1)


async def _pause(pid: int, seconds: float) -> None:
    os.kill(pid, signal.SIGSTOP)
    await asyncio.sleep(seconds)
    os.kill(pid, signal.SIGCONT)


@contextlib.contextmanager
def running_workers(faults: Sequence[str], lossy: bool, *flags: str) -> Iterator[WorkersNode]:
    with running_server(*FLAGS, "--workers", str(WORKERS), *flags) as server:
        yield WorkersNode(server, faults, lossy)
