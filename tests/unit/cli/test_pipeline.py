"""`ropewalk pipeline run`: an invalid argument is reported in one line with exit code 2, before a JVM starts."""

import os
import sys
from pathlib import Path

import pytest

from ropewalk.cli.main import main


def test_invalid_argument_is_reported_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    cases: list[tuple[list[str], str]] = [
        (["audit", "--url", "nonsense"], "the url is the server's address, like http://127.0.0.1:8080, not 'nonsense'"),
        (["audit", "--url", "http://127.0.0.1:port"], "not 'http://127.0.0.1:port'"),
        (["replay", "--set", "replay.since=abc"], "not 'abc'"),
        (["compact", "--set", "compact.before=abc"], "not 'abc'"),
        (["compact", "--archive_dir", "s3a://bucket/archive"], "like /mnt/archive, not 's3a://bucket/archive'"),
    ]
    for words, message in cases:
        with subtests.test(words=words):
            monkeypatch.setattr("ropewalk.pipeline.session.spark_session", lambda *_, **__: pytest.fail("Spark was started"))
            assert main(["pipeline", "run", *words, "--config_path", "", "--state-dir", str(tmp_path)]) == 2
            shown = capsys.readouterr()
            assert message in shown.err
            assert (shown.out, shown.err.count("\n")) == ("", 1)


def test_imported_module_may_be_in_the_current_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jobs_in_this_directory.py").write_text("raise SystemError('it was found')")
    for _ in range(2):
        with pytest.raises(SystemError, match="it was found"):
            main(["pipeline", "list", "--import", "jobs_in_this_directory", "--config_path", ""])
    assert sys.path.count(str(tmp_path)) == 1
    assert os.environ["PYTHONPATH"].split(os.pathsep) == [str(tmp_path), "/elsewhere"]
    assert main(["pipeline", "list", "--import", "no_such_jobs", "--config_path", ""]) == 2
    assert "in this directory" in capsys.readouterr().err
