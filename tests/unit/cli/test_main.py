"""The entry point of the command line: which command runs, and what becomes of mistakes."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from ropewalk import __version__
from ropewalk.cli import main as command_line
from ropewalk.model.errors import Unavailable, UserMistake
from ropewalk.testing.clock import ManualClock
from tests.journals import publication, running


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A command named `probe`, whose `run` a test may replace."""
    module = ModuleType("probe_command")
    module.__dict__.update(SUMMARY="probe the door", run=len)
    monkeypatch.setitem(sys.modules, "probe_command", module)
    monkeypatch.setattr(command_line, "COMMANDS", {"probe": "probe_command:run"})
    return module


def raising(error: BaseException) -> object:
    def run(argv: list[str]) -> int:
        raise error

    return run


def test_a_command_gets_the_words_after_it_and_gives_the_exit_code(command: ModuleType) -> None:
    assert command_line.main(["probe", "--a", "b", "c"]) == 3


def test_the_overview_lists_commands_with_their_summaries(command: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.main(["--help"]) == 0
    assert "probe    probe the door" in capsys.readouterr().out


def test_without_a_command_the_overview_is_shown(command: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.main([]) == 0
    assert "usage: ropewalk" in capsys.readouterr().out


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.main(["--version"]) == 0
    assert capsys.readouterr().out == f"ropewalk {__version__}\n"


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (UserMistake("set --secret"), 2, "ropewalk: set --secret\n"),
        (Unavailable("nobody answers at :8080"), 1, "ropewalk: nobody answers at :8080\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_mistakes_are_words_on_standard_error(
    error: BaseException, code: int, said: str, command: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    command.__dict__["run"] = raising(error)

    assert command_line.main(["probe"]) == code
    assert capsys.readouterr() == ("", said)


def test_an_unknown_command_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.main(["sevre"]) == 2
    assert capsys.readouterr().err == "ropewalk: unknown command 'sevre'; did you mean serve?\n"


def test_the_package_runs_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ropewalk", "config", "--prot", "1"], capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "ropewalk: unknown flag --prot; did you mean --port?\n"


@pytest.mark.parametrize("words", [["publish", "chat", b"\xff"], ["tail", b"\xff"], ["token", "jwt", "--ids", b"\xff"]])
def test_bytes_that_are_no_text_are_a_mistake_and_no_traceback(words: list[str | bytes]) -> None:
    done = subprocess.run([sys.executable, "-m", "ropewalk", *words], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (2, f"ropewalk: argument {len(words)} is not UTF-8 text\n")


def test_a_secret_of_bytes_that_are_no_text_is_a_mistake_that_names_its_variable() -> None:
    environ = {**os.environb, b"ROPEWALK_SECRET": b"\xff"}
    done = subprocess.run(
        [sys.executable, "-m", "ropewalk", "token", "keys"], env=environ, capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stderr) == (2, "ropewalk: variable ROPEWALK_SECRET wants UTF-8 text\n")


def outcome(words: list[str], output: int) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "ropewalk", *words], stdout=output, stderr=subprocess.PIPE, text=True, check=False
    )
    return done.returncode, done.stderr


@pytest.fixture
def written(tmp_path: Path) -> list[list[str]]:
    """Commands that print something, among them two whose exit code is an answer."""

    async def journal() -> None:
        async with running(tmp_path, ManualClock(), shards=1) as (journal, _):
            await journal.write([publication("s", 1)])

    asyncio.run(journal())
    asked = [["journal", "verify", str(tmp_path)], ["prove", "--steps", "5", "--seed", "1"]]
    return [*asked, ["--version"], ["config", "--config_path="], ["publish", "--help"], ["serve", "--help"]]


def test_a_reader_that_left_early_ends_a_command_quietly_and_is_no_answer_of_it(written: list[list[str]]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        assert [outcome(words, writing) for words in written] == [(141, "")] * len(written)
    finally:
        os.close(writing)


def test_an_output_that_is_full_is_an_error_of_its_own(written: list[list[str]]) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        said = "ropewalk: standard output: [Errno 28] No space left on device\n"
        assert [outcome(words, full) for words in written] == [(74, said)] * len(written)
    finally:
        os.close(full)


def test_a_command_whose_output_is_closed_does_its_work() -> None:
    done = subprocess.run(
        ["sh", "-c", '"$0" -m ropewalk prove --steps 5 >&-', sys.executable], stderr=subprocess.PIPE, text=True, check=False
    )

    assert (done.returncode, done.stderr) == (0, "")
