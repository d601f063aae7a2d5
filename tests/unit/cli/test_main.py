"""The entry point of the command line: dispatch, overview and reporting of errors."""

import sys
from types import ModuleType

import pytest

from ropewalk import __version__
from ropewalk.cli import main as command_line
from ropewalk.model.errors import Unavailable, UserMistake


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A command named `probe`. Tests can replace its `run`."""
    module = ModuleType("probe_command")
    module.__dict__.update(SUMMARY="check the probe", run=len)
    monkeypatch.setitem(sys.modules, "probe_command", module)
    monkeypatch.setattr(command_line, "COMMANDS", {"probe": "probe_command:run"})
    return module


def raising(error: BaseException) -> object:
    def run(argv: list[str]) -> int:
        raise error

    return run


def test_command_receives_its_arguments_and_returns_the_exit_code(command: ModuleType) -> None:
    assert command_line.main(["probe", "--a", "b", "c"]) == 3


def test_help_lists_commands_with_their_summaries(command: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.main(["--help"]) == 0
    assert "probe    check the probe" in capsys.readouterr().out


def test_help_is_printed_without_a_command(command: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.main([]) == 0
    assert "usage: ropewalk" in capsys.readouterr().out


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.main(["--version"]) == 0
    assert capsys.readouterr().out == f"ropewalk {__version__}\n"


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (UserMistake("set --secret"), 2, "ropewalk: set --secret\n"),
        (Unavailable("no answer from :8080"), 1, "ropewalk: no answer from :8080\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_errors_are_printed_to_standard_error_with_their_exit_code(
    error: BaseException, code: int, message: str, command: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    command.__dict__["run"] = raising(error)

    assert command_line.main(["probe"]) == code
    assert capsys.readouterr() == ("", message)


def test_unknown_command_is_rejected_with_the_nearest_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.main(["sevre"]) == 2
    assert capsys.readouterr().err == "ropewalk: unknown command 'sevre'; did you mean serve?\n"
