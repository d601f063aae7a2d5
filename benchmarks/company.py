"""Who else was on the machine: the processor time of the whole machine, less our own.

Read it when no child is running: the time of a child counts as ours once it has ended.
"""

import ctypes
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Self

from msgspec import Struct

ADOPT_ORPHANS = 36
"""PR_SET_CHILD_SUBREAPER of Linux: what a child leaves behind becomes ours, and its time too once it has ended."""

TIMEOUT = 15.0


class Company(Struct, frozen=True):
    """A moment: the clock, and processor seconds that the machine and this run have spent so far."""

    clock: float
    machine: float
    ours: float

    @classmethod
    def now(cls) -> Self:
        with open("/proc/stat") as file:
            user, nice, system, _, _, irq, softirq, steal, *_ = map(int, file.readline().split()[1:])
        spent = (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
        return cls(time.monotonic(), spent, sum(os.times()[:4]))

    def until(self, later: "Company") -> tuple[float, float]:
        """The seconds in between, and how many cores the others kept busy on average."""
        seconds = later.clock - self.clock
        return seconds, max(0.0, (later.machine - self.machine) - (later.ours - self.ours)) / seconds


@contextmanager
def keeping_descendants() -> Iterator[None]:
    """At the end, wait for what children left behind: a JVM and its workers outlive the process that started them a little."""
    ctypes.CDLL(None).prctl(ADOPT_ORPHANS, 1, 0, 0, 0)
    kept = _children()
    yield
    deadline = time.monotonic() + TIMEOUT
    while (left := _orphans(kept)) and time.monotonic() < deadline:
        for pid in left:
            os.waitpid(pid, os.WNOHANG)
        time.sleep(0.05)


def _children() -> set[int]:
    return set(map(int, Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()))


def _orphans(kept: set[int]) -> set[int]:
    """Those that are not ours to begin with: Python's own resource tracker is, and stays until the end."""
    tracker = getattr(resource_tracker._resource_tracker, "_pid", None)
    return _children() - kept - {tracker}
