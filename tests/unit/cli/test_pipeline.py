"""`ropewalk pipeline run`: mistakes are one line and exit code 2, before a JVM is started."""

from pathlib import Path

import pytest

from ropewalk.cli.main import main


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["audit", "--url", "nonsense"], "the url is the server's address, like http://127.0.0.1:8080, not 'nonsense'"),
        (["audit", "--url", "http://127.0.0.1:port"], "not 'http://127.0.0.1:port'"),
        (["replay", "--set", "replay.since=abc"], "not 'abc'"),
        (["compact", "--set", "compact.before=abc"], "not 'abc'"),
    ],
)
def test_a_mistake_is_one_line(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ropewalk.pipeline.session.spark_session", lambda *_, **__: pytest.fail("Spark was started"))
    assert main(["pipeline", "run", *words, "--config_path", "", "--state-dir", str(tmp_path)]) == 2
    shown = capsys.readouterr()
    assert said in shown.err
    assert (shown.out, shown.err.count("\n")) == ("", 1)
