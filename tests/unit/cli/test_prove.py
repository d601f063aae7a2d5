"""`ropewalk prove`: says what it did, and shows how to see a failure again."""

import re

import pytest

from ropewalk.cli.main import main
from ropewalk.core.idempotency import Registrations


def test_it_says_what_was_simulated_and_that_nothing_was_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prove", "--steps", "300", "--seed", "7"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("seed 7: 300 steps, ")
    assert re.search(r"^  digest of the history +[0-9a-f]{16}$", said, re.M)
    assert re.search(r"^  deliveries checked +[\d,]+$", said, re.M)
    assert said.endswith("anomalies: 0\n")


def test_a_failure_comes_with_its_seed_and_a_history_that_shows_it_again(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Registrations, "find", lambda self, publication, now: None)
    assert main(["prove", "--steps", "2000", "--seed", "4"]) == 1
    said = capsys.readouterr().out
    assert "anomalies: 1\n" in said
    again = re.search(r"^  ropewalk (prove --seed \d+ --steps \d+ --nodes .*)$", said, re.M)
    assert again
    assert said.splitlines()[-1].startswith("registered twice: ")
    assert main(again[1].split()) == 1


def test_what_cannot_be_left_out_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prove", "--without", "publish"]) == 2
    assert "--without: publish is none of late, lost, " in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--steps", "--nodes", "--clients", "--streams"])
def test_a_world_without_anything_is_refused(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prove", option, "0"]) == 2
    assert f"{option} is a number from 1 on, not 0" in capsys.readouterr().err
