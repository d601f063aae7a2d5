"""Programs as a person runs them: whole processes, their output line by line, and Ctrl-C."""

import asyncio
import contextlib
import signal
import subprocess
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from typing import IO

from tests.server import clean_environ

SECONDS = 60
ENVIRON = clean_environ()


def run_ropewalk(*words: str, text: str | bytes = "", **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs a command, with `text` as its standard input."""
    given = text.encode() if isinstance(text, str) else text
    command = [sys.executable, "-m", "ropewalk", *words]
    ended = subprocess.run(
        command, input=given, capture_output=True, timeout=SECONDS, env={**ENVIRON, **variables}, check=False
    )
    return subprocess.CompletedProcess(words, ended.returncode, ended.stdout.decode(), ended.stderr.decode())


def heed_interrupts() -> None:
    """In the child, before it begins: what a shell starts in the background ignores Ctrl-C, and children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Program:
    """A program that runs until it is told to stop."""

    def __init__(self, process: Process) -> None:
        self._process = process

    async def line(self) -> str:
        assert self._process.stdout is not None
        line = await asyncio.wait_for(self._process.stdout.readline(), SECONDS)
        assert line, "the program ended"
        return line.decode().rstrip("\n")

    async def complaint(self) -> str:
        assert self._process.stderr is not None
        return (await asyncio.wait_for(self._process.stderr.readline(), SECONDS)).decode().rstrip("\n")

    def write(self, text: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(text.encode())

    async def interrupt(self) -> int:
        """Ctrl-C; returns the exit code."""
        self._process.send_signal(signal.SIGINT)
        return await self.ended()

    async def ended(self) -> int:
        return await asyncio.wait_for(self._process.wait(), SECONDS)


@contextlib.asynccontextmanager
async def running_program(*words: str, output: int | IO[bytes] = PIPE) -> AsyncIterator[Program]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, *words, stdin=PIPE, stdout=output, stderr=PIPE, env=ENVIRON, preexec_fn=heed_interrupts
    )
    try:
        yield Program(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
