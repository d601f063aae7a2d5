"""Processes and how to kill them: a driver with its JVM and Python workers, found through /proc.

Invariant: only descendants of a driver that we started are ever touched.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]
PROC = Path("/proc")
GONE_SECONDS = 30.0
DUMP_SECONDS = 2.0
STACK_LINES = 30
# What has done its part when a query has started, and is only kept for the next one.
IDLE = {"lookup_data_sources", "create_data_source", "write_into_data_source", "plan_data_source_read"}


@dataclass(frozen=True)
class Process:
    """`born` distinguishes it from a later one with the same pid."""

    pid: int
    parent: int
    born: str
    words: tuple[str, ...]

    @property
    def role(self) -> str:
        """The module that a Python process of Spark's runs, or the program's name."""
        return self.words[-1].rpartition(".")[2] if self.sparks else Path(self.words[0]).name

    @property
    def sparks(self) -> bool:
        """Whether it is one of Spark's Python processes, forked by a daemon or not."""
        return self.words[-1].startswith("pyspark.")

    def alive(self) -> bool:
        now = look(self.pid)
        return now is not None and now.born == self.born

    def kill(self) -> bool:
        """False for one that had ended already."""
        alive = self.alive()
        if alive:
            os.kill(self.pid, signal.SIGKILL)
        return alive


def look(pid: int) -> Process | None:
    """None for a process that has ended, also if it is a zombie."""
    try:
        # The name in the parentheses may hold anything; behind it come state, parent and, as the 20th, the start.
        stat = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
        words = tuple((PROC / str(pid) / "cmdline").read_text().rstrip("\0").split("\0"))
    except OSError:
        return None
    return None if stat[0] in "ZX" else Process(pid, int(stat[1]), stat[19], words)


def descendants(pid: int) -> list[Process]:
    processes = [process for entry in PROC.iterdir() if entry.name.isdigit() and (process := look(int(entry.name)))]
    found: list[Process] = []
    parents = deque([pid])
    while parents:
        parent = parents.popleft()
        children = [process for process in processes if process.parent == parent]
        found += children
        parents.extend(child.pid for child in children)
    return found


def await_end(processes: list[Process]) -> None:
    deadline = time.monotonic() + GONE_SECONDS
    while left := [process for process in processes if process.alive()]:
        assert time.monotonic() < deadline, f"these outlive their driver: {left}"
        time.sleep(0.02)


class Child:
    """One run of a module of this package as a process. Its output is appended to its log."""

    def __init__(self, module: str, log: Path, *words: str) -> None:
        command = [sys.executable, "-m", f"tests.spark.chaos.{module}", *words]
        with log.open("ab") as out:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=out, stderr=out, cwd=ROOT)

    def ended(self) -> bool:
        return self._process.poll() is not None

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()


class Driver(Child):
    """One run of a driver process."""

    def __init__(self, kind: str, url: str, home: Path, log: Path) -> None:
        super().__init__("driver", log, kind, url, str(home))
        self._family: list[Process] = []

    def workers(self) -> list[Process]:
        """Spark's Python processes, for tasks, for planning, for commits: those that work, not the daemons that fork them."""
        family = descendants(self._process.pid)
        parents = {process.parent for process in family}
        return [process for process in family if process.sparks and process.pid not in parents]

    def kill_worker(self, chance: random.Random) -> str:
        """Returns its role. Waits while no worker is busy."""
        while not ((victim := self._victim(chance)) and victim.kill()):
            assert not self.ended(), "the driver has ended"
            time.sleep(0.001)
        return victim.role

    def _victim(self, chance: random.Random) -> Process | None:
        workers = [worker for worker in self.workers() if worker.role not in IDLE]
        if not workers:
            return None
        # By role first: most of them run tasks, and those that plan and commit would hardly ever have their turn.
        role = chance.choice(sorted({worker.role for worker in workers}))
        return chance.choice([worker for worker in workers if worker.role == role])

    def threads(self, log: Path) -> str:
        """The current state of the queries, by a thread dump of the JVM in the log, and the processes they may wait for."""
        family = descendants(self._process.pid)
        before = log.stat().st_size
        for process in family:
            if process.role == "java":
                os.kill(process.pid, signal.SIGQUIT)
        time.sleep(DUMP_SECONDS)
        dump = log.read_bytes()[before:].decode(errors="replace").split("\n\n")
        queries = ["\n".join(thread.splitlines()[:STACK_LINES]) for thread in dump if "stream execution thread" in thread]
        return "\n".join((*queries, f"processes: {[f'{process.pid} {process.role}' for process in family]}"))

    def aim(self) -> None:
        """Find the processes before a kill: that takes longer than the moment to hit."""
        self._family = [] if self.ended() else descendants(self._process.pid)

    def kill_jvm(self) -> None:
        for process in self._family:
            if process.role == "java":
                process.kill()
        self.kill()

    def kill(self) -> None:
        """Only the Python side: the JVM ends on its own, and the next driver must wait for that."""
        super().kill()
        await_end(self._family)


def reports(log: Path, what: str) -> Iterator[str]:
    """The reports of a child about `what`."""
    for line in log.read_text(errors="replace").splitlines():
        if line.startswith(f"{what} "):
            yield line.removeprefix(f"{what} ")
