"""Servers that are the nodes of one ring, as child processes on fixed ports of the loopback."""

import asyncio
import contextlib
import shutil
import ssl
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import aiohttp

from ropewalk.core.ring import shard_of
from tests.clients.credentials import SECRET
from tests.server import STOP_SECONDS, RunningServer
from tests.services import free_port

SHARDS = 16
FLAGS = ("--public", "--secret", "ring", "--jwt_secret", SECRET, "--streams_presence", "--history_limit", "1000")
WITHIN = 30.0


class Ring:
    """`nodes` by name. `journal`: every node has one, which outlives it. `workers`: how many each of these nodes has; others
    are one process."""

    def __init__(self, home: Path, names: str, journal: bool, workers: Mapping[str, int], flags: tuple[str, ...]) -> None:
        self._home = home
        self._flags = (*FLAGS, *flags)
        self._journal = journal
        self._workers = workers
        self.ports = {name: free_port() for name in names}
        self.nodes: dict[str, RunningServer] = {}

    def start(self, name: str, seeds: str = "") -> RunningServer:
        """`seeds`: the nodes that it is told of besides itself; all that were planned, unless it joins later."""
        home = self._home / name
        home.mkdir(exist_ok=True)
        flags = ["--port", str(self.ports[name]), "--journal_shards", str(SHARDS)]
        if self.keeps_journal(name):
            flags += ["--data_dir", str(home / "data"), "--durability", "fsync"]
        if name in self._workers:
            flags += ["--workers", str(self._workers[name])]
        flags += [*self.finding(name, seeds), "--ring_node", name]
        self.nodes[name] = RunningServer((*self._flags, *flags), home)
        return self.nodes[name]

    def finding(self, name: str, seeds: str) -> list[str]:
        """How the node is told of the others."""
        told = ",".join(f"{each}=127.0.0.1:{self.ports[each]}" for each in sorted({*(seeds or self.ports), name}))
        return ["--ring", told]

    def keeps_journal(self, name: str) -> bool:
        return self._journal

    def start_all(self, names: str) -> None:
        """New nodes, all at once."""
        self.ports |= {name: free_port() for name in names}
        with ThreadPoolExecutor(len(names)) as threads:
            list(threads.map(self.start, names))

    def join(self, name: str) -> RunningServer:
        seeds = "".join(self.nodes)
        self.ports[name] = free_port()
        return self.start(name, seeds)

    def kill(self, name: str) -> None:
        self.nodes.pop(name).kill()

    def lose(self, name: str) -> None:
        """As `kill`, and with its journal."""
        self.kill(name)
        shutil.rmtree(self._home / name)

    def exchange_directories(self, one: str, other: str) -> None:
        aside = self._home / "aside"
        for source, target in ((self._home / one, aside), (self._home / other, self._home / one), (aside, self._home / other)):
            source.rename(target)

    def stop(self, name: str) -> int:
        return self.nodes.pop(name).stop()

    async def healthy(self, tls: ssl.SSLContext | bool = True) -> None:
        """All nodes reach each other."""
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls)) as http:
            for name, node in self.nodes.items():
                deadline = time.monotonic() + WITHIN
                while (await _answer(http, f"{node.url}/health")) != {"status": "ok"}:
                    assert time.monotonic() < deadline, f"{name} is not healthy: {node.log()}"
                    await asyncio.sleep(0.05)

    async def change(self, name: str, change: dict[str, object]) -> dict[str, object]:
        """Asked of one node; returns what it says of the ring then."""
        async with aiohttp.ClientSession() as http, http.post(f"{self.nodes[name].url}/api/ring", json=change) as response:
            assert response.status == 200, await response.text()
            report: dict[str, object] = await response.json()
            return report

    async def settled(self) -> None:
        """Every shard is held by its owner, as all nodes see it."""
        deadline = time.monotonic() + WITHIN
        async with aiohttp.ClientSession() as http:
            for name, node in self.nodes.items():
                while (report := await _answer(http, f"{node.url}/api/ring"))["moving"] or report["unavailable"]:
                    assert time.monotonic() < deadline, (name, report, node.log())
                    await asyncio.sleep(0.05)

    def end(self) -> None:
        for node in self.nodes.values():
            if node.process.poll() is None:
                node.process.terminate()
        for node in self.nodes.values():
            try:
                node.process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                node.kill()


async def _answer(http: aiohttp.ClientSession, url: str) -> Any:
    async with http.get(url) as response:
        return await response.json()


@contextlib.contextmanager
def running_ring(
    names: str = "abc", *flags: str, journal: bool = False, workers: Mapping[str, int] | None = None
) -> Iterator[Ring]:
    with tempfile.TemporaryDirectory() as home:
        ring = Ring(Path(home), names, journal, workers or {}, flags)
        try:
            for name in names:
                ring.start(name)
            yield ring
        finally:
            ring.end()


def streams_of_all_shards(count: int = SHARDS) -> list[str]:
    """One stream of each shard."""
    found: dict[int, str] = {}
    number = 0
    while len(found) < count:
        found.setdefault(shard_of(f"chat/{number}", SHARDS), f"chat/{number}")
        number += 1
    return [found[shard] for shard in sorted(found)]


async def try_to_publish(node: RunningServer, stream: str, data: object, **extra: Any) -> tuple[int, dict[str, Any]]:
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{node.url}/_broadcast", json={"stream": stream, "data": data, **extra}) as response,
    ):
        return response.status, await response.json()
