"""Hostile clients against one server: a healthy client's pings stay quick, memory and disk stay small, refusals are counted.

Run with `-s` for the table of what a ping took beside each attack, as a multiple of what it takes beside ordinary clients.
"""

import asyncio
import re
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from tests.cable import Cable, cable
from tests.metrics import metrics_when
from tests.scenarios.hostile import ATTACKS, TICKER, ordinary_clients
from tests.server import RunningServer, publish, running_server

ROOT = Path(__file__).parents[2]
PATIENCE = 60.0
RATIO = 20.0  # that the worst ping beside attacks may be of the worst ping beside ordinary clients
LEAST = 0.05  # seconds: a machine that does other things too delays a ping by this much now and then
MEMORY = 96 << 20  # bytes by which all attacks together may make the process grow, at its largest
DISK = 40 << 20  # bytes that all attacks together may make the journal write; 24 MB are messages that they publish

COUNTED = (
    "bad_frame",
    "body_too_large",
    "chunks",
    "fragments",
    "head_timeout",
    "identifier",
    "message_too_big",
    "outbox_full",
    "write_timeout",
)


@asynccontextmanager
async def attackers(server: RunningServer, names: Sequence[str]) -> AsyncIterator[asyncio.Task[int]]:
    """A process of its own, so that what the healthy client measures is the server's doing."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.scenarios.hostile", server.url, *names, cwd=ROOT
    )
    ending = asyncio.create_task(process.wait())
    try:
        yield ending
    finally:
        if process.returncode is None:
            process.kill()
        await ending


async def worst_ping(server: RunningServer, healthy: Cable, *names: str) -> float:
    """The longest that a ping of the healthy client took while these attacks went on."""
    loop = asyncio.get_running_loop()
    worst = 0.0
    async with asyncio.timeout(PATIENCE), attackers(server, names) as ending:
        while not ending.done():
            asked = loop.time()
            await healthy.quiet()
            worst = max(worst, loop.time() - asked)
            await asyncio.sleep(0.02)
        assert ending.result() == 0
    return worst


def peak_memory(server: RunningServer) -> int:
    """The largest the process ever was, in bytes."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    found = re.search(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE)
    assert found
    return int(found[1]) * 1024


def bytes_in(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


async def test_no_attack_hurts_a_healthy_client_nor_makes_the_server_large(tmp_path: Path) -> None:
    data, settings = tmp_path / "data", tmp_path / "ropewalk.toml"
    settings.write_text(f'[[streams]]\npattern = "{TICKER}"\nslow_consumer = "drop"\n')
    flags = ("--config_path", str(settings), "--sse", "--data_dir", str(data), "--history_limit", "10")
    patience = ("--presence_ttl", "60s", "--ws_write_timeout", "1s")
    with running_server("--public", *flags, *patience) as server:
        async with cable(server) as healthy:
            await healthy.subscribe("hostile/healthy")
            usual = await worst_ping(server, healthy, ordinary_clients.__name__)
            memory, disk = peak_memory(server), bytes_in(data)
            took = {name: await worst_ping(server, healthy, name) for name in ATTACKS}
            took["all at once"] = await worst_ping(server, healthy, *ATTACKS)
            await publish(server, "hostile/healthy", "still here")
            assert await healthy.messages(1) == ["still here"]
            counted = await metrics_when(server, lambda now: now["connections"] == 1)
        memory, disk = peak_memory(server) - memory, bytes_in(data) - disk
        print(*_table(usual, took, memory, disk), sep="\n")
        assert _complaints(usual, took, memory, disk, counted, server.log()) == []


def _table(usual: float, took: dict[str, float], memory: int, disk: int) -> Iterator[str]:
    yield f"\nworst ping beside ordinary clients: {usual * 1000:.1f} ms"
    for name, worst in took.items():
        yield f"  beside {name}: {worst * 1000:.1f} ms, {worst / usual:.1f} times as long"
    yield f"memory grew by at most {memory / (1 << 20):.1f} MiB, the journal by {disk / (1 << 20):.1f} MiB"


def _complaints(usual: float, took: dict[str, float], memory: int, disk: int, counted: dict[str, float], log: str) -> list[str]:
    """Everything that is not as it should be, so that one run tells all of it."""
    most = RATIO * max(usual, LEAST)
    slow = [f"a ping took {worst:.2f} s beside {name}" for name, worst in took.items() if worst > most]
    uncounted = [f"nothing counted as {reason}" for reason in COUNTED if not counted[f"refusals_total{{{reason}}}"]]
    large = [f"memory grew by {memory} bytes"] if memory > MEMORY else []
    full = [f"the journal grew by {disk} bytes"] if disk > DISK else []
    traced = (
        [f"{log.count('Traceback')} tracebacks, the first: {log[log.find('Traceback') :][:2000]}"] if "Traceback" in log else []
    )
    return [*slow, *uncounted, *large, *full, *traced]
