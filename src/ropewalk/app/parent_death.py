"""Child processes that the kernel kills when their parent dies, however that ends. Linux only."""

import ctypes
import os
import signal
import sys
from collections.abc import Callable

PR_SET_PDEATHSIG = 1


def killed_with_parent() -> Callable[[], None] | None:
    """A `preexec_fn`. It asks for SIGKILL at the death of the parent, which outlives the exec, and checks that the parent has
    not died before. Call it in the main thread: the signal comes when the thread that forks ends."""
    if sys.platform != "linux":
        return None
    parent = os.getpid()
    prctl = ctypes.CDLL(None).prctl  # found before the fork, after which as little as possible should happen

    def in_child() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    return in_child
