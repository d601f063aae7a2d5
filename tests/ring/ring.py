"""Servers that are the nodes of one ring, as child processes on fixed ports of the loopback."""

import asyncio
import contextlib
import secrets
import shutil
import ssl
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import aiohttp

from ropewalk.core.ring import locate_shard
from ropewalk.core.signatures import RING_CHANGES_PHRASE, RING_PHRASE, derive
from tests.clients.credentials import SECRET
from tests.server import STOP_SECONDS, Address, RunningServer
from tests.services import free_port

SHARDS = 16
RING_SECRET = "ring"
CHANGES = {"Authorization": f"Bearer {derive(derive(RING_SECRET, RING_PHRASE), RING_CHANGES_PHRASE)}"}
"""Headers of a request that changes the ring."""

FLAGS = ("--public", "--secret", RING_SECRET, "--jwt_secret", SECRET, "--streams_presence", "--history_limit", "1000")
SECONDS = 60.0  # matters only where a test fails


class Ring:
    """The running servers by node name.

    Args:
        home: directory with one subdirectory per node.
        names: names of the nodes, one letter each.
        journal: whether each node has a journal. It outlives the process.
        workers: number of workers by node. Other nodes are one process.
        flags: of each server.
    """

    def __init__(self, home: Path, names: str, journal: bool, workers: Mapping[str, int], flags: tuple[str, ...]) -> None:
        self._home = home
        self._flags = (*FLAGS, *flags)
        self._journal = journal
        self._workers = workers
        self.ports = {name: free_port() for name in names}
        self.ring_ports = {name: free_port() for name in names}
        self.nodes: dict[str, RunningServer] = {}

    def ring_port(self, name: str) -> Address:
        return Address(f"tcp://127.0.0.1:{self.ring_ports[name]}")

    def start(self, name: str, seeds: str = "") -> RunningServer:
        """Start one node.

        Args:
            seeds: the other nodes in its --ring; by default all that have a port.
        """
        home = self._home / name
        home.mkdir(exist_ok=True)
        flags = ["--port", str(self.ports[name]), "--journal_shards", str(SHARDS)]
        if self.keeps_journal(name):
            flags += ["--data_dir", str(home / "data"), "--durability", "fsync"]
        if name in self._workers:
            flags += ["--workers", str(self._workers[name])]
        flags += [*self.discovery(name, seeds), "--ring_node", name]
        self.nodes[name] = RunningServer((*self._flags, *flags), home)
        return self.nodes[name]

    def discovery(self, name: str, seeds: str) -> list[str]:
        """The flags by which the node finds the others."""
        addresses = (f"{each}=127.0.0.1:{self.ring_ports[each]}" for each in sorted({*(seeds or self.ports), name}))
        return ["--ring", ",".join(addresses)]

    def keeps_journal(self, name: str) -> bool:
        return self._journal

    def start_all(self, names: Iterable[str]) -> None:
        """All at once."""
        for name in names:
            if name not in self.ports:
                self.add_ports(name)
        with ThreadPoolExecutor() as threads:
            list(threads.map(self.start, names))
        self.nodes = dict(sorted(self.nodes.items()))

    def join(self, name: str) -> RunningServer:
        """Start a new node. Its --ring has the nodes that run now."""
        seeds = "".join(self.nodes)
        self.add_ports(name)
        return self.start(name, seeds)

    def add_ports(self, name: str) -> None:
        self.ports[name], self.ring_ports[name] = free_port(), free_port()

    def kill(self, name: str) -> None:
        self.nodes.pop(name).kill()

    def lose(self, name: str) -> None:
        """Kill the node and delete its journal."""
        self.kill(name)
        shutil.rmtree(self._home / name)

    def exchange_directories(self, one: str, other: str) -> None:
        aside = self._home / "aside"
        for source, target in ((self._home / one, aside), (self._home / other, self._home / one), (aside, self._home / other)):
            source.rename(target)

    def stop(self, name: str) -> int:
        return self.nodes.pop(name).stop()

    async def healthy(self, tls: ssl.SSLContext | bool = True, names: str = "") -> None:
        """Wait until these nodes, by default all, reach each other."""
        deadline = time.monotonic() + SECONDS
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls)) as http:
            for name in names or self.nodes:
                node = self.nodes[name]
                while (health := await _get(http, f"{node.url}/health")) != {"status": "ok"}:
                    assert time.monotonic() < deadline, f"{name}: {health}\n{node.log()}"
                    await asyncio.sleep(0.02)

    async def change(self, name: str, change: dict[str, object]) -> dict[str, object]:
        """Post a change to one node; returns its report of the ring."""
        url = f"{self.nodes[name].url}/api/ring"
        async with aiohttp.ClientSession(headers=CHANGES) as http, http.post(url, json=change) as response:
            assert response.status == 200, await response.text()
            report: dict[str, object] = await response.json()
            return report

    async def settled(self) -> None:
        """Wait until all nodes report the same table, and that each shard is held by its owner."""
        deadline = time.monotonic() + SECONDS
        async with aiohttp.ClientSession() as http:
            while True:
                reports = [await _get(http, f"{node.url}/api/ring") for node in self.nodes.values()]
                tables = [(report["term"], [(each["name"], each["owns"]) for each in report["nodes"]]) for report in reports]
                moving = any(report["moving"] or report["unavailable"] for report in reports)
                if not moving and all(table == tables[0] for table in tables):
                    return
                assert time.monotonic() < deadline, reports
                await asyncio.sleep(0.02)

    async def unreached(self, name: str) -> None:
        """Wait until no node reaches this one."""
        deadline = time.monotonic() + SECONDS
        async with aiohttp.ClientSession() as http:
            for node in self.nodes.values():
                while _is_alive(report := await _get(http, f"{node.url}/api/ring"), name):
                    assert time.monotonic() < deadline, report
                    await asyncio.sleep(0.02)

    def end(self) -> None:
        for node in self.nodes.values():
            if node.process.poll() is None:
                node.process.terminate()
        for node in self.nodes.values():
            try:
                node.process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                node.kill()


def _is_alive(report: dict[str, Any], name: str) -> bool:
    return any(node["alive"] for node in report["nodes"] if node["name"] == name)


async def _get(http: aiohttp.ClientSession, url: str) -> Any:
    async with http.get(url) as response:
        return await response.json()


@contextlib.contextmanager
def running_ring(
    names: str = "abc", *flags: str, journal: bool = False, workers: Mapping[str, int] | None = None
) -> Iterator[Ring]:
    with tempfile.TemporaryDirectory() as home:
        ring = Ring(Path(home), names, journal, workers or {}, flags)
        try:
            ring.start_all(names)
            yield ring
        finally:
            ring.end()


def streams_of_all_shards(count: int = SHARDS, prefix: str = "chat") -> list[str]:
    """One stream of each shard."""
    found: dict[int, str] = {}
    number = 0
    while len(found) < count:
        found.setdefault(locate_shard(f"{prefix}/{number}", SHARDS), f"{prefix}/{number}")
        number += 1
    return [found[shard] for shard in sorted(found)]


async def try_to_publish(node: RunningServer, stream: str, data: object, **extra: Any) -> tuple[int, dict[str, Any]]:
    """Status and body of the response."""
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{node.url}/_broadcast", json={"stream": stream, "data": data, **extra}) as response,
    ):
        return response.status, await response.json()


async def until_published(node: RunningServer, stream: str, data: object) -> dict[str, Any]:
    """Retry while the response is 503 or the worker has ended. A uid makes the retries safe; returns the position."""
    uid = secrets.token_hex(8)
    deadline = time.monotonic() + SECONDS
    while True:
        answer = "the connection was closed"
        with contextlib.suppress(aiohttp.ClientError):
            status, body = await try_to_publish(node, stream, data, uid=uid)
            if status == 201:
                position: dict[str, Any] = body["publications"][0]
                position.pop("duplicate", None)
                return position
            assert status == 503, body
            answer = str(body)
        assert time.monotonic() < deadline, answer
        await asyncio.sleep(0.05)


async def holder_of(node: RunningServer, name: str) -> str:
    """The node that holds a stream or a session."""
    async with aiohttp.ClientSession() as http, http.get(f"{node.url}/api/ring", params={"stream": name}) as response:
        return str((await response.json())["place"]["holder"])
