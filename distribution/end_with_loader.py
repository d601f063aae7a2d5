"""Run by the one file before everything else: the server ends when the process that was started is killed.

That process has unpacked the file, passes signals on and waits to clean up; what serves is its child. Whoever kills it with
SIGKILL means the server, and may start it again at once: it must not end later than that process.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1

if sys.platform == "linux" and "_ROPEWALK_ROLE" not in os.environ:  # what a supervisor starts ends with the supervisor
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
