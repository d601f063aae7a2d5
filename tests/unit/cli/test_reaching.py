"""Where a command looks for the server when nobody said it: at the place that the server's own settings name."""

from pathlib import Path

import pytest

from ropewalk.app.settings import load
from ropewalk.cli.main import main
from ropewalk.cli.reaching import listening_at, url_of
from ropewalk.model.errors import UserMistake


@pytest.mark.parametrize(
    ("flags", "url"),
    [
        ((), "http://127.0.0.1:8080"),
        (("--port", "9000"), "http://127.0.0.1:9000"),
        (("--host", "live.example.com"), "http://live.example.com:8080"),
        (("--host", "0.0.0.0"), "http://127.0.0.1:8080"),
        (("--host", "::"), "http://127.0.0.1:8080"),
        (("--host", "::1"), "http://[::1]:8080"),
        (("--ssl_cert", "cert.pem", "--ssl_key", "key.pem"), "https://127.0.0.1:8080"),
    ],
)
def test_the_server_is_reached_where_its_settings_say(flags: tuple[str, ...], url: str) -> None:
    assert listening_at(load(flags, {"ROPEWALK_CONFIG_PATH": ""})) == url


@pytest.mark.parametrize("flags", [("--host", "unix:/run/ropewalk.sock"), ("--port", "0")])
def test_settings_that_name_no_address_are_said_to_be_so(flags: tuple[str, ...]) -> None:
    with pytest.raises(UserMistake, match="--url"):
        listening_at(load(flags, {"ROPEWALK_CONFIG_PATH": ""}))


def test_an_address_that_is_given_is_taken_without_a_look_at_the_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken.toml").write_text("[server")
    monkeypatch.setenv("ROPEWALK_CONFIG_PATH", str(tmp_path / "broken.toml"))

    assert url_of("http://elsewhere") == "http://elsewhere"


def test_a_job_that_needs_no_server_does_not_ask_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ROPEWALK_CONFIG_PATH", "")
    monkeypatch.setenv("ROPEWALK_HOST", "unix:/run/ropewalk.sock")
    places = ("--state_dir", str(tmp_path / "state"), "--archive_dir", str(tmp_path / "archive"))

    assert main(["pipeline", "run", "compact", "--available-now", *places]) == 0
    assert main(["pipeline", "run", "archive", "--available-now", *places]) == 2
    assert "say with --url where it is" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "wrong", "right"), [("push", "--key", "--token"), ("publish", "--token", "--key")], ids=["push", "publish"]
)
@pytest.mark.parametrize("rest", [(), ("guess",)], ids=["alone", "with a key"])
def test_a_key_under_the_name_that_it_has_elsewhere_is_told_the_right_one(
    command: str, wrong: str, right: str, rest: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "chat", "hello", wrong, *rest])
    assert ended.value.code == 2
    assert f"there is no {wrong} here; the key for publishing is {right}" in capsys.readouterr().err
