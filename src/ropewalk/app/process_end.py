"""How processes end: the second stop signal, and the death of the parent."""

import ctypes
import os
import signal
import sys
from collections.abc import Callable

ECHO_SECONDS = 0.5
"""A signal within this time after the first is a copy of it. A person takes longer to repeat it."""


class StopSignals:
    """Distinguishes the first signal that ends a server from the second: the first begins an orderly shutdown, the second ends
    the process at once.

    One signal may arrive twice: a terminal or systemd signals all processes, and a parent, such as the loader of the standalone
    binary, forwards the signal it received.
    """

    def __init__(self) -> None:
        self._first: float | None = None

    def means_now(self, now: float) -> bool:
        """Whether the signal just received is the second. `now`: monotonic time."""
        if self._first is None:
            self._first = now
            return False
        return now - self._first > ECHO_SECONDS


PR_SET_PDEATHSIG = 1


def killed_with_parent() -> Callable[[], None] | None:
    """A `preexec_fn` that requests SIGKILL at the death of the parent, and checks that the parent is still alive. Call it in
    the main thread: the signal is sent when the forking thread ends. None on other systems than Linux."""
    if sys.platform != "linux":
        return None
    parent = os.getpid()
    prctl = ctypes.CDLL(None).prctl  # loaded before the fork: do as little as possible after it

    def in_child() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    return in_child
