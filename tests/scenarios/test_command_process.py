"""`ropewalk` as a process: undecodable arguments, and an output that is closed, full or no longer read."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from ropewalk.testing.clock import ManualClock
from tests.journals import publication, running

ROPEWALK = (sys.executable, "-m", "ropewalk")


def run(words: Sequence[str | bytes], environ: Mapping[bytes, bytes] | None = None) -> tuple[int, str, str]:
    """Returns the exit code, the output and the errors."""
    done = subprocess.run([*ROPEWALK, *words], env=environ, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def run_all(commands: Sequence[Sequence[str]], output: int) -> list[tuple[int, str]]:
    """Runs the commands side by side with this standard output. Returns the exit code and the errors of each."""
    started = [subprocess.Popen([*ROPEWALK, *words], stdout=output, stderr=subprocess.PIPE, text=True) for words in commands]
    errors = [process.communicate()[1] for process in started]
    return [(process.returncode, text) for process, text in zip(started, errors, strict=True)]


def test_package_runs_as_a_module() -> None:
    assert run(["config", "--prot", "1"]) == (2, "", "ropewalk: unknown flag --prot; did you mean --port?\n")


def test_undecodable_argument_is_reported_with_its_position(subtests: pytest.Subtests) -> None:
    cases: list[list[str | bytes]] = [["publish", "chat", b"\xff"], ["tail", b"\xff"], ["token", "jwt", "--ids", b"\xff"]]
    for words in cases:
        with subtests.test(words=words):
            assert run(words) == (2, "", f"ropewalk: argument {len(words)} is not UTF-8 text\n")


def test_undecodable_secret_is_reported_with_its_variable() -> None:
    environ = {**os.environb, b"ROPEWALK_SECRET": b"\xff"}
    assert run(["token", "keys"], environ) == (2, "", "ropewalk: variable ROPEWALK_SECRET wants UTF-8 text\n")


@pytest.fixture
def commands(tmp_path: Path) -> list[list[str]]:
    """Commands with an output. The exit codes of the first two are results."""

    async def write_journal() -> None:
        async with running(tmp_path, ManualClock(), shards=1) as (journal, _):
            await journal.write([publication("s", 1)])

    asyncio.run(write_journal())
    return [
        ["journal", "verify", str(tmp_path)],
        ["prove", "--steps", "5", "--seed", "1"],
        ["--version"],
        ["config", "--config_path="],
        ["publish", "--help"],
        ["serve", "--help"],
    ]


def test_closed_pipe_ends_a_command_silently_with_its_own_exit_code(commands: list[list[str]]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        assert run_all(commands, writing) == [(141, "")] * len(commands)
    finally:
        os.close(writing)


def test_full_disk_is_reported_with_its_own_exit_code(commands: list[list[str]]) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        message = "ropewalk: standard output: [Errno 28] No space left on device\n"
        assert run_all(commands, full) == [(74, message)] * len(commands)
    finally:
        os.close(full)


def test_command_with_a_closed_output_completes() -> None:
    command = ["sh", "-c", '"$0" -m ropewalk prove --steps 5 >&-', sys.executable]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
