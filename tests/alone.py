"""Runs tests marked `alone` while no other process of the same run (`make test`) runs a test.

Every test holds a shared lock, one marked `alone` an exclusive one. A second lock serializes the waiting processes, so that a
stream of shared holders cannot starve an exclusive one.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path


@contextmanager
def run_slot(alone: bool, directory: Path) -> Iterator[None]:
    """Wait until the test may run.

    Args:
        alone: whether no other test may run at the same time.
        directory: common to all processes of this run, and to no other run.
    """
    with ExitStack() as stack:
        with _lock(directory / "waiting", fcntl.LOCK_EX):
            stack.enter_context(_lock(directory / "running", fcntl.LOCK_EX if alone else fcntl.LOCK_SH))
        yield


@contextmanager
def _lock(path: Path, operation: int) -> Iterator[None]:
    """A file lock. The system releases it when the process ends."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(handle, operation)
        yield
    finally:
        fcntl.flock(handle, fcntl.LOCK_UN)  # closing is not enough: a child process may have a copy
        os.close(handle)
