"""The server address that commands derive from the settings if --url is not given."""

from pathlib import Path

import pytest

from ropewalk.app.settings import load
from ropewalk.cli.main import main
from ropewalk.cli.reaching import listening_at, url_of
from ropewalk.model.errors import UserMistake


def test_address_is_derived_from_the_settings(subtests: pytest.Subtests) -> None:
    cases: list[tuple[tuple[str, ...], str]] = [
        ((), "http://127.0.0.1:8080"),
        (("--port", "9000"), "http://127.0.0.1:9000"),
        (("--host", "live.example.com"), "http://live.example.com:8080"),
        (("--host", "0.0.0.0"), "http://127.0.0.1:8080"),
        (("--host", "::"), "http://127.0.0.1:8080"),
        (("--host", "::1"), "http://[::1]:8080"),
        (("--ssl_cert", "cert.pem", "--ssl_key", "key.pem"), "https://127.0.0.1:8080"),
    ]
    for flags, url in cases:
        with subtests.test(flags=flags):
            assert listening_at(load(flags, {"ROPEWALK_CONFIG_PATH": ""})) == url


def test_settings_without_an_address_require_url(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, ...]] = [("--host", "unix:/run/ropewalk.sock"), ("--port", "0")]
    for flags in cases:
        with subtests.test(flags=flags), pytest.raises(UserMistake, match="--url"):
            listening_at(load(flags, {"ROPEWALK_CONFIG_PATH": ""}))


def test_given_url_is_used_without_reading_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken.toml").write_text("[server")
    monkeypatch.setenv("ROPEWALK_CONFIG_PATH", str(tmp_path / "broken.toml"))

    assert url_of("http://elsewhere") == "http://elsewhere"


def test_job_without_a_server_needs_no_url(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ROPEWALK_CONFIG_PATH", "")
    monkeypatch.setenv("ROPEWALK_HOST", "unix:/run/ropewalk.sock")
    places = ("--state_dir", str(tmp_path / "state"), "--archive_dir", str(tmp_path / "archive"))

    assert main(["pipeline", "run", "compact", "--available-now", *places]) == 0
    assert main(["pipeline", "run", "archive", "--available-now", *places]) == 2
    assert "pass it with --url" in capsys.readouterr().err


def test_key_option_of_the_other_command_is_rejected_with_a_hint(
    capsys: pytest.CaptureFixture[str], subtests: pytest.Subtests
) -> None:
    endings: list[tuple[str, ...]] = [(), ("guess",)]
    commands: list[tuple[str, str, str]] = [("push", "--key", "--token"), ("publish", "--token", "--key")]
    for rest in endings:
        for command, wrong, right in commands:
            with subtests.test(command=command, rest=rest):
                with pytest.raises(SystemExit) as exited:
                    main([command, "chat", "hello", wrong, *rest])
                assert exited.value.code == 2
                assert f"unknown flag {wrong}: pass the key for publishing with {right}" in capsys.readouterr().err
