"""Lets the kernel kill child processes when their parent dies for any reason. Linux only."""

import ctypes
import os
import signal
import sys
from collections.abc import Callable

PR_SET_PDEATHSIG = 1


def killed_with_parent() -> Callable[[], None] | None:
    """A `preexec_fn` that requests SIGKILL at the death of the parent, and checks that the parent is still alive. Call it in
    the main thread: the signal is sent when the forking thread ends."""
    if sys.platform != "linux":
        return None
    parent = os.getpid()
    prctl = ctypes.CDLL(None).prctl  # loaded before the fork: do as little as possible after it

    def in_child() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    return in_child
