"""Hostile clients against one server: pings of a healthy client stay fast, messages are delivered, memory and disk usage stay
small, refusals are counted.

Run with `-s` for a table of the ping times beside each attack, as multiples of those beside ordinary clients.

Real attackers have their own machines. Here they share a few cores with the server and the healthy client. So the time that the
server or the client waited for a core is subtracted from the ping time. The rest is the work of the server before it answered.
Where several threads wait at once, too much is subtracted, never too little.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import astuple, dataclass
from pathlib import Path
from types import ModuleType

import pytest

from ropewalk.protocol.broky.frames import Pushed, Run
from ropewalk.protocol.broky.runs import build_run, split_payloads
from tests.broky_client import client
from tests.cable import Cable, cable
from tests.faults import hostile, hostile_broky
from tests.faults.hostile import TICKER, ordinary_clients
from tests.metrics import metrics_when
from tests.process_tree import children, peak_memory, worker_of
from tests.server import RunningServer, publish, running_server

ROOT = Path(__file__).parents[2]
TIMEOUT = 240.0  # seconds of a group of attacks; matters only where the test fails
MAX_RATIO = 5.0  # of ping times beside attacks to those beside ordinary clients, for the worst and for most pings
MIN_WORST = 0.008  # seconds; the worst of some hundred pings may wait this long for ordinary work, such as new connections
MIN_MOST = 0.003  # seconds; the same for most of them
MOST = 0.98  # of the pings
GROUP_SIZE = 6  # attacks at once
MAX_MEMORY_BYTES = 96 << 20  # growth of the peak by all attacks together
MAX_DISK_BYTES = 40 << 20  # growth of the journal by all attacks together; their messages are 24 MB

BY_BOTH = ("bad_frame", "head_timeout", "message_too_big", "outbox_full", "write_timeout")
COUNTED = {
    hostile: (*BY_BOTH, "body_too_large", "chunks", "fragments", "identifier"),
    hostile_broky: BY_BOTH,  # a connection reaches its command rate before its limit of subscriptions
}


@asynccontextmanager
async def attackers(server: RunningServer, kind: ModuleType, names: Sequence[str]) -> AsyncIterator[asyncio.Task[int]]:
    """In another process, so that the attacks do not delay the measuring client."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", kind.__name__, server.url, *names, cwd=ROOT)
    ending = asyncio.create_task(process.wait())
    try:
        yield ending
    finally:
        if process.returncode is None:
            process.kill()
        await ending


@dataclass(frozen=True)
class Pings:
    """In seconds. `worst` and `most` without the time in which a thread waited for a core, `longest` with it."""

    worst: float
    most: float
    longest: float


async def pings(server: RunningServer, healthy: Cable, kind: ModuleType, *names: str) -> Pings:
    """The times of the healthy client's pings during these attacks."""
    pids = (worker_of(server, healthy.port) if children(server) else server.process.pid, os.getpid())
    loop = asyncio.get_running_loop()
    took: list[float] = []
    longest = 0.0
    async with asyncio.timeout(TIMEOUT), attackers(server, kind, names) as ending:
        while not ending.done():
            waits, asked = _waits(pids), loop.time()
            await healthy.quiet()
            answered = loop.time() - asked
            took.append(answered - sum(now - waits.get(thread, 0) for thread, now in _waits(pids).items()) / 1e9)
            longest = max(longest, answered)
            await asyncio.sleep(0.02)
        assert ending.result() == 0
    took.sort()
    return Pings(took[-1], took[int(MOST * (len(took) - 1))], longest)


def _waits(pids: Sequence[int]) -> dict[Path, int]:
    """Nanoseconds that each thread of these processes waited for a core. A thread that holds the interpreter lock makes the
    others wait with it. Empty where the system does not report it."""
    waits = {}
    for pid in pids:
        for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            with suppress(OSError):  # it has ended
                waits[path] = int(path.read_text().split()[1])
    return waits


def bytes_in(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def groups(kind: ModuleType) -> dict[str, Sequence[str]]:
    names = list(kind.ATTACKS)
    parts = [names[begin : begin + GROUP_SIZE] for begin in range(0, len(names), GROUP_SIZE)]
    return {", ".join(part): part for part in [*parts, names]}


@asynccontextmanager
async def witness_delivery(server: RunningServer) -> AsyncIterator[list[int]]:
    """A producer and a subscriber over TCP. Yields the pushed numbers; at the end the subscriber has received all of them."""
    pushed: list[int] = []

    async def push() -> None:
        async with client(server) as producer:
            while True:
                number = len(pushed) + 1
                producer.send(build_run(b"hostile/witness", [b"%d" % number], ref=number))
                answer = await producer.expect(Pushed)
                assert (answer.refs, answer.offsets) == ((number,), (number,))
                pushed.append(number)
                await asyncio.sleep(0.05)

    async with client(server) as subscriber:
        await subscriber.subscribe(b"hostile/witness")
        pushing = asyncio.create_task(push())
        try:
            yield pushed
        finally:
            pushing.cancel()
        with suppress(asyncio.CancelledError):
            await pushing
        got: list[int] = []
        while len(got) < len(pushed):
            got += map(int, split_payloads(await subscriber.expect(Run)))
        assert got[: len(pushed)] == pushed


@pytest.mark.alone
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("kind", "workers"), [(hostile, 1), (hostile, 4), (hostile_broky, 1), (hostile_broky, 4)])
async def test_attacks_neither_slow_a_healthy_client_nor_fill_memory_or_disk(
    tmp_path: Path, kind: ModuleType, workers: int
) -> None:
    """Groups of attacks, and then all of them."""
    data, settings = tmp_path / "data", tmp_path / "ropewalk.toml"
    settings.write_text(f'[[streams]]\npattern = "{TICKER}"\nslow_consumer = "drop"\n')
    flags = ("--config_path", str(settings), "--sse", "--data_dir", str(data), "--history_limit", "10")
    timeouts = ("--presence_ttl", "60s", "--ws_write_timeout", "1s")
    with running_server("--public", *flags, *timeouts, "--workers", str(workers)) as server:
        async with cable(server) as healthy, witness_delivery(server) as pushed:
            await healthy.subscribe("hostile/healthy")
            before = await pings(server, healthy, kind, ordinary_clients.__name__)
            processes = set(children(server))
            memory, disk = peak_memory(server), bytes_in(data)
            took: dict[str, Pings] = {}
            for name, attacks in groups(kind).items():
                before_them = len(pushed)
                took[name] = await pings(server, healthy, kind, *attacks)
                assert len(pushed) > before_them, f"no push was answered beside {name}"
            after = await pings(server, healthy, kind, ordinary_clients.__name__)
            await publish(server, "hostile/healthy", "still here")
            assert await healthy.messages(1) == ["still here"]
            counted = await metrics_when(server, lambda now: now["connections"] == 3)
        memory, disk = peak_memory(server) - memory, bytes_in(data) - disk
        usual = Pings(*(max(each) for each in zip(astuple(before), astuple(after), strict=True)))
        print(*_table(usual, took, memory, disk), sep="\n")
        assert set(children(server)) == processes
        assert _failures(COUNTED[kind], usual, took, memory, disk, counted) == []


def _table(usual: Pings, took: Mapping[str, Pings], memory: int, disk: int) -> Iterator[str]:
    yield f"\npings without attacks: {MOST:.0%} within {usual.most * 1000:.1f} ms, the worst {usual.worst * 1000:.1f} ms"
    for name, each in took.items():
        most = f"{MOST:.0%} within {each.most * 1000:.1f} ms ({each.most / usual.most:.1f} times)"
        worst = f"the worst {each.worst * 1000:.1f} ms ({each.worst / usual.worst:.1f} times)"
        yield f"  beside {name}: {most}, {worst}; by the clock {each.longest * 1000:.1f} ms"
    yield f"memory grew by at most {memory / (1 << 20):.1f} MiB, the journal by {disk / (1 << 20):.1f} MiB"


def _failures(
    reasons: Sequence[str],
    usual: Pings,
    took: Mapping[str, Pings],
    memory: int,
    disk: int,
    counted: Mapping[str, float],
) -> list[str]:
    """All failures, so that one run reports each of them."""
    worst, most = MAX_RATIO * max(usual.worst, MIN_WORST), MAX_RATIO * max(usual.most, MIN_MOST)
    slow = [f"a ping took {each.worst:.4f} s beside {name}" for name, each in took.items() if each.worst > worst]
    often = [f"many pings took {each.most:.4f} s beside {name}" for name, each in took.items() if each.most > most]
    uncounted = [f"nothing counted as {reason}" for reason in reasons if not counted[f"refusals_total{{{reason}}}"]]
    large = [f"memory grew by {memory} bytes"] if memory > MAX_MEMORY_BYTES else []
    full = [f"the journal grew by {disk} bytes"] if disk > MAX_DISK_BYTES else []
    return [*slow, *often, *uncounted, *large, *full]
