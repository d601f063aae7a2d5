"""`ropewalk token`: what it prints is what the server accepts, and a mistake says how to put it right."""

import os
from pathlib import Path

import pytest

from ropewalk.adapters.apps.jwt import JwtAuthenticator
from ropewalk.cli import token
from ropewalk.core.signatures import verify_stream
from ropewalk.model.errors import UserMistake
from ropewalk.model.sessions import Accepted, Refused
from ropewalk.testing.auth import request_with

SECRET = "a secret that is long enough for the hash"
IDS = '{"user":1}'
NOW = 1_700_000_000.5


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for variable in [name for name in os.environ if name.startswith(("ROPEWALK_", "ANYCABLE_"))]:
        monkeypatch.delenv(variable)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> "Printed":
    return Printed(capsys)


class Printed:
    """Runs the command and gives what it printed."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *argv: str) -> str:
        assert token.run(list(argv), lambda: NOW) == 0
        return self._capsys.readouterr().out.removesuffix("\n")


async def judge(jwt: str, secret: str = SECRET) -> Accepted | Refused | None:
    return await JwtAuthenticator(secret, clock=lambda: NOW).authenticate(request_with(jwt), "sid")


async def test_a_jwt_is_good_for_ever_unless_told_otherwise(printed: Printed) -> None:
    assert await judge(printed("jwt", "--secret", SECRET, "--ids", IDS)) == Accepted(IDS)


async def test_a_ttl_counts_from_now(printed: Printed) -> None:
    assert await judge(printed("jwt", "--secret", SECRET, "--ids", IDS, "--ttl", "1h")) == Accepted(IDS, 1_700_003_600.0)


async def test_an_expiry_is_taken_as_it_is_even_when_past(printed: Printed) -> None:
    assert await judge(printed("jwt", "--secret", SECRET, "--ids", IDS, "--exp", "1700000060")) == Accepted(
        IDS, 1_700_000_060.0
    )
    assert await judge(printed("jwt", "--secret", SECRET, "--ids", IDS, "--exp", "1")) == Refused("token_expired")


def test_a_stream_is_signed_as_the_vector_says(printed: Printed) -> None:
    expected = "ImNoYXQ6MjAyMSI=--f9ee45dbccb1da04d8ceb99cc820207804370ba0d06b46fc3b8b373af1315628"
    assert printed("stream", "chat:2021", "--secret", "s3Krit") == expected


def test_the_keys_are_derived_as_the_vectors_say(printed: Printed) -> None:
    assert printed("keys", "--secret", "qwerty").splitlines() == [
        "ROPEWALK_BROADCAST_KEY=42923a28b760e667fc92f7c6123bb07a282822b329dd2ef48e7aee7830d98485",
        "ROPEWALK_API_SECRET=bdd0244b3664404d03b7d0c2f1b946dc4fc6c13fdcbfa2be62a4a28deb04d096",
        "ROPEWALK_JOURNAL_TOKEN=a8798ee6e029b73a8046fc8a8be8d691a7d2cb4d7808d860501fb4244c1f6602",
    ]


@pytest.mark.parametrize("variable", ["ROPEWALK_SECRET", "ANYCABLE_SECRET"])
async def test_the_secret_comes_from_the_environment(printed: Printed, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, SECRET)
    assert await judge(printed("jwt", "--ids", IDS)) == Accepted(IDS)
    assert verify_stream(printed("stream", "chat"), SECRET) == "chat"
    assert printed("keys") == printed("keys", "--secret", SECRET)


async def test_a_secret_for_one_purpose_goes_before_the_general_one(printed: Printed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROPEWALK_SECRET", "the general one")
    monkeypatch.setenv("ROPEWALK_JWT_SECRET", SECRET)
    monkeypatch.setenv("ROPEWALK_STREAMS_SECRET", "for streams")
    assert await judge(printed("jwt", "--ids", IDS)) == Accepted(IDS)
    assert verify_stream(printed("stream", "chat"), "for streams") == "chat"
    assert verify_stream(printed("stream", "chat", "--secret", "given"), "given") == "chat"
    assert printed("keys") == printed("keys", "--secret", "the general one")


def test_the_secret_comes_from_the_settings_file_as_for_the_server(printed: Printed, tmp_path: Path) -> None:
    (tmp_path / "ropewalk.toml").write_text('[auth]\nsecret = "in the file"\n')
    assert verify_stream(printed("stream", "chat"), "in the file") == "chat"


@pytest.mark.parametrize(
    ("argv", "hint"),
    [
        (["jwt", "--ids", IDS], "ROPEWALK_JWT_SECRET"),
        (["stream", "chat"], "ROPEWALK_STREAMS_SECRET"),
        (["keys"], "ROPEWALK_SECRET"),
        (["keys", "--secret", "none"], "ROPEWALK_SECRET"),
        (["jwt", "--ids", "", "--secret", SECRET], "--ids must not be empty"),
        (["stream", "", "--secret", SECRET], "NAME must not be empty"),
        (["stream", "n" * 513, "--secret", SECRET], "longer than 512 bytes"),
        (["jwt", "--ids", IDS, "--secret", SECRET, "--ttl", "soon"], "--ttl wants a duration"),
        (["jwt", "--ids", IDS, "--secret", SECRET, "--ttl", "9" * 400], "--ttl wants a duration"),
        (["jwt", "--ids", IDS, "--secret", SECRET, "--exp", "1700000000000"], "not milliseconds"),
        (["jwt", "--ids", IDS, "--secret", SECRET, "--exp", "-1"], "years 1970 to 9999"),
        (["jwt", "--ids", IDS, "--secret", "ssh-rsa AAAA"], "JWT secret cannot be used"),
    ],
)
def test_a_mistake_says_how_to_put_it_right(argv: list[str], hint: str) -> None:
    with pytest.raises(UserMistake, match=hint):
        token.run(argv)


def test_a_secret_that_is_turned_off_is_not_replaced_by_the_general_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROPEWALK_SECRET", SECRET)
    monkeypatch.setenv("ROPEWALK_JWT_SECRET", "none")
    with pytest.raises(UserMistake, match="a secret is needed"):
        token.run(["jwt", "--ids", IDS])


@pytest.mark.parametrize("argv", [[], ["cookie"], ["jwt"], ["stream"], ["jwt", "--ids", IDS, "--ttl", "1h", "--exp", "1"]])
def test_a_wrong_usage_is_answered_with_the_right_one(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        token.run(argv)
    assert ended.value.code == 2
    assert "usage: ropewalk token" in capsys.readouterr().err
