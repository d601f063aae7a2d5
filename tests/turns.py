"""Where several processes run the tests of one run (`make test`), a test that is marked `alone` runs while no other does.

Every test holds the room, one that is alone holds it for itself. Who wants to enter waits at the gate, one at a time, so that
those who share the room cannot keep out the one who does not by coming and going.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path


@contextmanager
def turn(alone: bool, shared: Path) -> Iterator[None]:
    """`shared`: a directory that all processes of the run know, and no other run does."""
    with ExitStack() as stack:
        with _held(shared / "gate", fcntl.LOCK_EX):
            stack.enter_context(_held(shared / "room", fcntl.LOCK_EX if alone else fcntl.LOCK_SH))
        yield


@contextmanager
def _held(path: Path, how: int) -> Iterator[None]:
    """A lock of the system, which ends with the process, however that ends."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(handle, how)
        yield
    finally:
        fcntl.flock(handle, fcntl.LOCK_UN)  # closing is not enough while a child has a copy
        os.close(handle)
