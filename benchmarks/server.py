"""The server under test, as users run it: a process of its own, started by the command line.

Its resource usage is read from the system.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from types import TracebackType
from typing import Self

from msgspec import Struct

Address = tuple[str, int]
STARTUP = 30.0


class Usage(Struct, frozen=True):
    """Of one process: resident memory in bytes, processor time in seconds."""

    resident: int
    processor: float


class Program:
    """`python -m` with these arguments: a process that prints its address."""

    def __init__(self, *arguments: str) -> None:
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the server
        command = [sys.executable, "-m", *arguments]
        # settings in the environment must not reach the server under test
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("ROPEWALK_", "ANYCABLE_"))}
        self._process = subprocess.Popen(command, stdout=self._output, stderr=subprocess.STDOUT, env=environ)
        self.address = self._listening()

    def usage(self) -> Usage:
        """Of all its processes."""
        found = [read_usage(pid) for pid in self.pids()]
        return Usage(sum(each.resident for each in found), sum(each.processor for each in found))

    def pids(self) -> list[int]:
        """Its processes, the one that was started first."""
        return _family(self._process.pid)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        self._output.close()

    def _listening(self) -> Address:
        deadline = time.monotonic() + STARTUP
        while time.monotonic() < deadline and self._process.poll() is None:
            found = re.search(r"listening on \w+://([\d.]+):(\d+)", self._read_log())
            if found:
                return found[1], int(found[2])
            time.sleep(0.05)
        self._process.kill()
        self._process.wait()
        raise RuntimeError(f"the server did not start:\n{self._read_log()}")

    def _read_log(self) -> str:
        # pread leaves the file's position alone: the server writes through the same one
        return os.pread(self._output.fileno(), 1 << 20, 0).decode(errors="replace")


class Server(Program):
    """`ropewalk serve --public --port 0` with further flags."""

    def __init__(self, *flags: str) -> None:
        super().__init__("ropewalk", "serve", "--public", "--port", "0", *flags)

    def published(self) -> int:
        """Messages that it has taken in, as it counts them itself."""
        host, port = self.address
        with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=STARTUP) as answer:
            page: str = answer.read().decode()
        (count,) = re.findall(r"^ropewalk_publications_total (\S+)$", page, re.MULTILINE)
        return int(float(count))


def _family(pid: int) -> list[int]:
    """A process and what it has started."""
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        children = map(int, file.read().split())
    return [pid, *(each for child in children for each in _family(child))]


def read_usage(pid: int) -> Usage:
    with open(f"/proc/{pid}/statm") as file:
        pages = int(file.read().split()[1])
    # The clock of a process, as clock_getcpuclockid(3) has it: /proc/PID/stat has hundredths of a second only.
    return Usage(pages * os.sysconf("SC_PAGE_SIZE"), time.clock_gettime(~pid << 3 | 2))
