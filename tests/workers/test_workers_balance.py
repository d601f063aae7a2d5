"""Connections are spread evenly over the workers, also after all of these were replaced; and no session is lost on the way.

Which worker accepts a connection is decided by chance. So of n connections on two workers each has n / 2, and the standard
deviation is half the root of n: 10 % of a share are more than four of them with 2,000 connections.
"""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from tests.process_tree import connections, workers
from tests.scenarios.idle_clients import Told
from tests.server import RunningServer, running_server

CONNECTIONS = int(os.environ.get("WORKERS_CONNECTIONS") or 2_000)
WORKERS = 2
PROCESSES = 2  # of clients: one alone may not open so many files
WITHIN = 60.0 + CONNECTIONS / 50
DIFFERENCE = 0.1
ROOT = Path(__file__).parents[2]


class IdleClients:
    """One process of them. `told` is what it said last."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.told = Told()
        self._listening = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            self.told = Told(**json.loads(line))

    async def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._process.wait()
        await self._listening


@contextlib.asynccontextmanager
async def idle_clients(server: RunningServer) -> AsyncIterator[list[IdleClients]]:
    async with contextlib.AsyncExitStack() as stack:
        crowds = []
        for number in range(PROCESSES):
            command = ("tests.scenarios.idle_clients", server.url, str(CONNECTIONS // PROCESSES), f"127.0.0.{number + 2}")
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", *command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            crowds.append(IdleClients(process))
            stack.push_async_callback(crowds[-1].end)
        yield crowds


async def told_when(crowds: list[IdleClients], fits: Callable[[Told], bool]) -> Told:
    try:
        async with asyncio.timeout(WITHIN):
            while not fits(told := _together(crowds)):
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"not in {WITHIN:g} s: {_together(crowds)}") from None
    return told


def _together(crowds: list[IdleClients]) -> Told:
    return Told(*(sum(each) for each in zip(*(crowd.told for crowd in crowds), strict=True)))


def _all_came_back(told: Told) -> bool:
    return told.connected == CONNECTIONS <= told.resumed + told.lost


def is_balanced(counts: list[int]) -> bool:
    share = CONNECTIONS / WORKERS
    return len(counts) == WORKERS and all(abs(count - share) <= DIFFERENCE * share for count in counts)


async def test_workers_have_equal_shares_of_the_connections_also_after_all_were_replaced() -> None:
    with running_server("--public", "--workers", str(WORKERS)) as server:
        async with idle_clients(server) as crowds:
            await told_when(crowds, lambda told: told.connected == CONNECTIONS)
            shares = connections(server)
            print(f"\n{CONNECTIONS} connections: {sorted(shares.values())}")
            assert is_balanced(list(shares.values())), shares
            server.process.send_signal(signal.SIGHUP)
            await told_when(crowds, lambda told: "all workers were replaced" in server.log())
            told = await told_when(crowds, _all_came_back)
            others = connections(server)
            print(f"after all workers were replaced: {sorted(others.values())}, {told}")
            assert told.lost == 0
            assert not others.keys() & shares.keys()
            assert is_balanced(list(others.values())), others
        assert len(workers(server)) == WORKERS
        assert "Traceback" not in server.log(), server.log()
