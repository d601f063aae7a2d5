"""Who else was on the machine: the processor time of the whole machine, less our own.

Read it when no child is running: the time of a child counts as ours once it has ended.
"""

import os
import time
from typing import Self

from msgspec import Struct


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
