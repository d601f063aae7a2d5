"""Where several processes run the tests of one run (`make test`), a test that is marked `alone` runs while no other does.

Every test holds the room, one that is alone holds it for itself. Who wants to enter waits at the gate, one at a time, so that
those who share the room cannot keep out the one who does not by coming and going.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

GATE = Path(__file__)
ROOM = GATE.parent


@contextmanager
def held(path: Path, how: int) -> Iterator[None]:
    """A lock of the system on something that is there anyway: it ends with the process, and leaves nothing behind."""
    handle = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(handle, how)
        yield
    finally:
        fcntl.flock(handle, fcntl.LOCK_UN)  # closing is not enough while a child has a copy
        os.close(handle)


@contextmanager
def turn(alone: bool, gate: Path = GATE, room: Path = ROOM) -> Iterator[None]:
    with ExitStack() as stack:
        with held(gate, fcntl.LOCK_EX):
            stack.enter_context(held(room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH))
        yield
