"""Connections are spread evenly over the workers, before and after all workers are replaced, and no session is lost.

The kernel picks the worker of a connection by a hash of its ports. With n connections and two workers the share of each has the
mean n / 2 and the standard deviation sqrt(n) / 2: with 2,000 connections, 10 % of a share are 4.5 standard deviations.
"""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Collection
from pathlib import Path

from tests.process_tree import connections, workers
from tests.server import RunningServer, running_server
from tests.workers.idle_clients import Counts

CONNECTIONS = int(os.environ.get("WORKERS_CONNECTIONS") or 2_000)
WORKERS = 2
CLIENT_PROCESSES = 2  # the limit of open files is for one process
DEADLINE_SECONDS = 60.0 + CONNECTIONS / 20
MAX_DIFFERENCE = 0.1
ROOT = Path(__file__).parents[2]


class IdleClients:
    """One process of them. `counts` are its latest."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.counts = Counts()
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            self.counts = Counts(**json.loads(line))

    async def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._process.wait()
        await self._reading


@contextlib.asynccontextmanager
async def idle_clients(server: RunningServer) -> AsyncIterator[list[IdleClients]]:
    async with contextlib.AsyncExitStack() as stack:
        crowds = []
        for number in range(CLIENT_PROCESSES):
            command = ("tests.workers.idle_clients", server.url, str(CONNECTIONS // CLIENT_PROCESSES), f"127.0.0.{number + 2}")
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", *command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            crowds.append(IdleClients(process))
            stack.push_async_callback(crowds[-1].end)
        yield crowds


async def counts_when(crowds: list[IdleClients], fits: Callable[[Counts], bool]) -> Counts:
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not fits(counts := _sum(crowds)):
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"not in {DEADLINE_SECONDS:g} s: {_sum(crowds)}") from None
    return counts


def _sum(crowds: list[IdleClients]) -> Counts:
    return Counts(*(sum(each) for each in zip(*(crowd.counts for crowd in crowds), strict=True)))


def _all_reconnected(counts: Counts) -> bool:
    return counts.connected == CONNECTIONS <= counts.resumed + counts.lost


def is_balanced(shares: Collection[int]) -> bool:
    share = CONNECTIONS / WORKERS
    return len(shares) == WORKERS and all(abs(each - share) <= MAX_DIFFERENCE * share for each in shares)


async def test_workers_have_equal_shares_of_the_connections_before_and_after_they_are_replaced() -> None:
    with running_server("--public", "--workers", str(WORKERS)) as server:
        async with idle_clients(server) as crowds:
            await counts_when(crowds, lambda counts: counts.connected == CONNECTIONS)
            shares = connections(server)
            print(f"\n{CONNECTIONS} connections: {sorted(shares.values())}")
            assert is_balanced(shares.values()), shares
            server.process.send_signal(signal.SIGHUP)
            await counts_when(crowds, lambda counts: "all workers were replaced" in server.log())
            counts = await counts_when(crowds, _all_reconnected)
            others = connections(server)
            print(f"after all workers were replaced: {sorted(others.values())}, {counts}")
            assert counts.lost == 0
            assert not others.keys() & shares.keys()
            assert is_balanced(others.values()), others
        assert len(workers(server)) == WORKERS
