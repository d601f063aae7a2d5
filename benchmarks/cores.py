"""Which core a process runs on. Unpinned, the same echo takes 20 or 80 µs, and ratios are meaningless."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from msgspec import Struct


class Cores(Struct, frozen=True):
    """One for the server and one for the load; the same one where the machine has no other."""

    server: int
    load: int

    @classmethod
    def of_this_machine(cls) -> "Cores":
        allowed = sorted(os.sched_getaffinity(0))
        return cls(allowed[0], allowed[-1])

    def details(self) -> dict[str, float]:
        return {"server_core": self.server, "load_core": self.load}


@contextmanager
def on_core(core: int) -> Iterator[None]:
    """Pins the caller, and everything it starts meanwhile with all threads and children, to this core until the end."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
