"""The obedient RPC backend in a process that can be killed, paused, and restarted on the same port."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.conformance.applications import obedient_rpc

ROOT = Path(__file__).parents[3]
STOP_SECONDS = 10


class RpcProcess:
    """`address`: the value of `--rpc_host`."""

    def __init__(self, kind: str, log: Path) -> None:
        self.address = ""
        self._kind = kind
        self._log = log
        self._port = "0"
        self._process = self._started()

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()

    def hold(self) -> None:
        """It accepts connections and sends no response."""
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def restart(self) -> None:
        self._process = self._started()

    def end(self) -> None:
        self.go_on()
        try:
            self._process.communicate(timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()

    def _started(self) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", obedient_rpc.__name__, self._kind, self._port, str(self._log)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        assert process.stdout is not None
        line = process.stdout.readline()
        match = re.match(rf"{obedient_rpc.REACHED}(.*:(\d+)\S*)", line)
        assert match, f"the backend did not start: {line}"
        self.address, self._port = match[1], match[2]
        return process


@contextmanager
def rpc_process(kind: str, log: Path) -> Iterator[RpcProcess]:
    process = RpcProcess(kind, log)
    try:
        yield process
    finally:
        process.end()
