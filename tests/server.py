"""The real server as a child process, for tests of the outside. It ends with the test, however the test ends."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp

from ropewalk.app.process_role import VARIABLE

LISTENING = re.compile(r"listening on (\S+)")
ACTIVATE = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1")
os.execv(sys.argv[2], sys.argv[2:])
"""
START_SECONDS = 60
STOP_SECONDS = 40  # longer than --shutdown_timeout, within which a server ends by itself
SHOWN_LOG_CHARS = 6000


def clean_environ() -> dict[str, str]:
    """The environment of the tests without settings of Ropewalk, which must not reach a server under test."""
    ours = ("ROPEWALK_", "ANYCABLE_")
    return {name: value for name, value in os.environ.items() if name != "PORT" and not name.startswith(ours)}


class Address:
    """Where a server listens."""

    def __init__(self, url: str) -> None:
        self._url = url

    @property
    def url(self) -> str:
        return self._url

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    @property
    def cable(self) -> str:
        return self.url.replace("http", "ws", 1) + "/cable"


class RunningServer(Address):
    """One `ropewalk serve` process. `inherited`: a socket that it gets as systemd would pass it on, instead of a port.

    `variables`: what its environment has besides that of the tests. `program`: what to start instead of the sources, in an
    environment that has nothing but `variables`.
    """

    def __init__(
        self,
        flags: tuple[str, ...],
        home: Path,
        inherited: socket.socket | None = None,
        variables: Mapping[str, str] | None = None,
        program: tuple[str, ...] = (),
    ) -> None:
        self._log = home / "server.log"
        environ = {**({} if program else clean_environ()), **(variables or {})}
        program = program or (sys.executable, "-m", "ropewalk")
        command = [*program, "serve", "--port", "0", "--shutdown_spread", "0", *flags]
        if inherited is not None:
            command = [sys.executable, "-c", ACTIVATE, str(inherited.fileno()), *command]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                pass_fds=[] if inherited is None else [inherited.fileno()],
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=home,
                env=environ,
            )
        super().__init__(self._wait_for_address())

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def kill(self) -> None:
        """As a crash of the machine would: no goodbye of any of its processes."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGSTOP)  # so that it starts none of them again
            children = _children(self.process.pid)
            for child in children:
                os.kill(child, signal.SIGKILL)  # as long as nobody waits for it, its number belongs to nobody else
            _wait_for_ends(children)
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """As an operator would; returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_SECONDS)

    def _wait_for_address(self) -> str:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if match := LISTENING.search(self.log()):
                return match[1]
            if self.process.poll() is not None:
                break
            time.sleep(0.02)
        self.process.kill()
        raise AssertionError(f"the server did not start:\n{self.log()}")


def _children(pid: int) -> list[int]:
    """Processes of a supervisor, of whichever role. What they start themselves ends with them."""
    children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [child for child in children if VARIABLE.encode() in Path(f"/proc/{child}/environ").read_bytes()]


def _wait_for_ends(pids: list[int]) -> None:
    deadline = time.monotonic() + STOP_SECONDS
    while any(") Z " not in Path(f"/proc/{pid}/stat").read_text() for pid in pids):
        assert time.monotonic() < deadline, f"killed, and still there: {pids}"
        time.sleep(0.01)


@contextlib.contextmanager
def running_server(
    *flags: str,
    inherited: socket.socket | None = None,
    program: tuple[str, ...] = (),
    allow_tracebacks: bool = False,
    **variables: str,
) -> Iterator[RunningServer]:
    """Stops the server at the end. Fails if it has logged a traceback, unless the test provokes some: `allow_tracebacks`."""
    with tempfile.TemporaryDirectory() as home:
        server = RunningServer(flags, Path(home), inherited, variables, program)
        try:
            yield server
        except BaseException:
            print(f"--- end of the log of the server {server.url} ---\n{server.log()[-SHOWN_LOG_CHARS:]}")
            raise
        finally:
            if server.process.poll() is None:
                server.process.terminate()
                try:
                    server.process.wait(STOP_SECONDS)
                except subprocess.TimeoutExpired:
                    server.kill()
        assert allow_tracebacks or "Traceback" not in server.log(), f"the server {flags} logged a traceback:\n{server.log()}"


async def publish(server: RunningServer, stream: str, data: str, key: str = "", **extra: object) -> dict[str, Any]:
    """Publish one message; returns the position the server gave it."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with (
        aiohttp.ClientSession(headers=headers) as http,
        http.post(f"{server.url}/_broadcast", json={"stream": stream, "data": data, **extra}) as response,
    ):
        body = await response.json()
        assert response.status == 201, body
        position: dict[str, Any] = body["publications"][0]
        return position
