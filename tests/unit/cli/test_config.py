"""`ropewalk config` and its output formats."""

from pathlib import Path

import pytest

from ropewalk.app.settings.reference import as_markdown
from ropewalk.cli.main import main


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PORT", raising=False)


def test_table_shows_each_value_with_its_origin(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROPEWALK_HISTORY_LIMIT", "7")

    assert main(["config", "--public"]) == 0

    rows = [row.split() for row in capsys.readouterr().out.splitlines()]
    assert ["broker.history_limit", "7", "variable", "ROPEWALK_HISTORY_LIMIT"] in rows
    assert ["auth.public", "true", "flag", "--public"] in rows


def test_toml_format_prints_a_settings_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--format", "toml", "--port", "9"]) == 0
    assert "port = 9  # flag --port\n" in capsys.readouterr().out


def test_markdown_format_prints_the_reference_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--format=markdown"]) == 0
    assert capsys.readouterr().out == as_markdown()


def test_help_lists_the_format_flag_and_the_settings(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--help"]) == 0

    out = capsys.readouterr().out
    assert "--format toml" in out
    assert "--history_ttl" in out


def test_settings_that_cannot_start_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config"]) == 0
    assert "auth.noauth" in capsys.readouterr().out
