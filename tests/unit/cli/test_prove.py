"""`ropewalk prove`: the summary, and the command that reproduces a failure."""

import re

import pytest

from ropewalk.cli.main import main
from ropewalk.core.idempotency import Registrations

SMALL = ("--nodes", "2", "--clients", "3", "--streams", "3")
"""Fails within 20 steps without deduplication, and is quick to shrink."""


def test_summary_of_a_run_without_anomalies(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prove", "--steps", "300", "--seed", "7"]) == 0
    output = capsys.readouterr().out
    assert output.startswith("seed 7: 300 steps, ")
    assert re.search(r"^  digest of the history +[0-9a-f]{16}$", output, re.M)
    assert re.search(r"^  deliveries checked +[\d,]+$", output, re.M)
    assert output.endswith("anomalies: 0\n")


def test_failure_is_printed_with_the_command_that_reproduces_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Registrations, "find", lambda self, publication, now: None)
    assert main(["prove", *SMALL, "--steps", "50", "--seed", "1"]) == 1
    output = capsys.readouterr().out
    assert "anomalies: 1\n" in output
    reproduce = re.search(r"^  ropewalk (prove --seed \d+ --steps \d+ --nodes .*)$", output, re.M)
    assert reproduce
    assert output.splitlines()[-1].startswith("registered twice: ")
    assert main(reproduce[1].split()) == 1


def test_required_action_cannot_be_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prove", "--without", "publish"]) == 2
    assert "--without: unknown publish; possible are late, lost, " in capsys.readouterr().err


def test_zero_steps_nodes_clients_or_streams_are_rejected(
    capsys: pytest.CaptureFixture[str], subtests: pytest.Subtests
) -> None:
    for option in ["--steps", "--nodes", "--clients", "--streams"]:
        with subtests.test(option=option):
            assert main(["prove", option, "0"]) == 2
            assert f"{option} must be at least 1, not 0" in capsys.readouterr().err
