"""`ropewalk pipeline run`: an invalid argument is reported in one line with exit code 2, before a JVM starts."""

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
    ]
    for words, message in cases:
        with subtests.test(words=words):
            monkeypatch.setattr("ropewalk.pipeline.session.spark_session", lambda *_, **__: pytest.fail("Spark was started"))
            assert main(["pipeline", "run", *words, "--config_path", "", "--state-dir", str(tmp_path)]) == 2
            shown = capsys.readouterr()
            assert message in shown.err
            assert (shown.out, shown.err.count("\n")) == ("", 1)
