"""Runs `ropewalk` commands as forks of a process that has already imported them, in a fraction of the time that a new
interpreter takes. Each command is still a process with its own standard streams, environment and exit code.

`python -m tests.scenarios.command_forks DESCRIPTOR` is the process that forks. A request brings three standard streams and a
socket, on which the process id and the exit code of the command are returned.
"""

import atexit
import gc
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from threading import Lock
from typing import Any

from ropewalk.cli.main import main

ROOT = Path(__file__).parents[2]
MAX_REQUEST_BYTES = 1 << 20
NUMBER_BYTES = 4
PRELOADED = ("bench", "bench_tcp", "config", "health", "journal", "publish", "push", "tail", "token")

_starting = Lock()
_requests: socket.socket | None = None


def run_forked(words: Sequence[str], given: bytes, environ: Mapping[str, str], seconds: float) -> tuple[int, bytes, bytes]:
    """Returns the exit code, the output and the errors. Kills a command that takes longer and raises TimeoutExpired."""
    (their_input, our_input), (our_output, their_output), (our_errors, their_errors) = os.pipe(), os.pipe(), os.pipe()
    status, their_status = socket.socketpair()
    request = json.dumps({"words": list(words), "environ": dict(environ), "directory": os.getcwd()}).encode()
    passed = [their_input, their_output, their_errors, their_status.detach()]
    socket.send_fds(_connection(), [request], passed)
    for descriptor in passed:
        os.close(descriptor)
    with status, ThreadPoolExecutor(3) as threads:
        threads.submit(_write, our_input, given)
        output, errors = threads.submit(_read, our_output), threads.submit(_read, our_errors)
        status.settimeout(seconds)
        pid = _receive_number(status)
        try:
            code = _receive_number(status)
        except TimeoutError:
            os.kill(pid, signal.SIGKILL)
            raise subprocess.TimeoutExpired(list(words), seconds) from None
        return code, output.result(), errors.result()


def _connection() -> socket.socket:
    """To the process that forks, which starts with the first command."""
    global _requests
    with _starting:
        if _requests is None:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            command = [sys.executable, "-m", "tests.scenarios.command_forks", str(theirs.fileno())]
            null = subprocess.DEVNULL
            process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=null, stdout=null, cwd=ROOT)
            theirs.close()
            atexit.register(process.wait)
            atexit.register(ours.close)
            _requests = ours
        return _requests


def _receive_number(status: socket.socket) -> int:
    data = status.recv(NUMBER_BYTES, socket.MSG_WAITALL)
    assert len(data) == NUMBER_BYTES, "the process that runs the commands ended"
    return int.from_bytes(data, signed=True)


def _write(descriptor: int, data: bytes) -> None:
    try:
        with open(descriptor, "wb", buffering=0) as pipe:
            while data:
                data = data[pipe.write(data) :]
    except BrokenPipeError:  # a command may end before it has read everything
        pass


def _read(descriptor: int) -> bytes:
    with open(descriptor, "rb") as pipe:
        return pipe.read()


# --- the process that forks -------------------------------------------------------------------------------------------


def serve(requests: socket.socket) -> int:
    for name in PRELOADED:
        import_module(f"ropewalk.cli.{name}")
    gc.freeze()  # the last garbage collection of a child would copy all pages otherwise
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the children
    while True:
        request, descriptors, _, _ = socket.recv_fds(requests, MAX_REQUEST_BYTES, 4)
        if not request:
            return 0
        if os.fork() == 0:
            requests.close()
            return _supervise(json.loads(request), descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def _supervise(request: dict[str, Any], descriptors: Sequence[int]) -> int:
    """In a child: starts the command and reports how it ended. Returns in the child of this child, with the exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    *streams, status = descriptors
    pid = os.fork()
    if pid == 0:
        return _run(streams, status, **request)
    for descriptor in streams:
        os.close(descriptor)
    os.write(status, pid.to_bytes(NUMBER_BYTES))
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.write(status, code.to_bytes(NUMBER_BYTES, signed=True))
    os._exit(0)


def _run(streams: Sequence[int], status: int, words: list[str], environ: dict[str, str], directory: str) -> int:
    os.close(status)
    for place, descriptor in enumerate(streams):
        os.dup2(descriptor, place)
        os.close(descriptor)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environ)
    return main(words)


if __name__ == "__main__":
    sys.exit(serve(socket.socket(fileno=int(sys.argv[1]))))
