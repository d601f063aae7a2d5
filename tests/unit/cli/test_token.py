"""`ropewalk token`: the server accepts its output, and errors explain the fix."""

import os
from pathlib import Path

import pytest

from ropewalk.adapters.apps.authenticators import JwtAuthenticator, SharedSecret
from ropewalk.cli import token
from ropewalk.core.signatures import verify_stream
from ropewalk.model.errors import UserMistake
from ropewalk.model.sessions import Accepted, Refused
from ropewalk.testing.auth import request_with
from tests.server import clean_environ

SECRET = "a secret that is long enough for the hash"
IDS = '{"user":1}'
NOW = 1_700_000_000.5


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for variable in os.environ.keys() - clean_environ().keys():
        monkeypatch.delenv(variable)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def run_token(capsys: pytest.CaptureFixture[str]) -> "CommandRunner":
    return CommandRunner(capsys)


class CommandRunner:
    """Runs the command and returns its output."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *argv: str) -> str:
        assert token.run(list(argv), lambda: NOW) == 0
        return self._capsys.readouterr().out.removesuffix("\n")


async def authenticate(jwt: str, secret: str = SECRET) -> Accepted | Refused | None:
    return await JwtAuthenticator([SharedSecret(secret)], clock=lambda: NOW).authenticate(request_with(jwt), "sid")


async def test_jwt_does_not_expire_by_default(run_token: CommandRunner) -> None:
    assert await authenticate(run_token("jwt", "--secret", SECRET, "--ids", IDS)) == Accepted(IDS)


async def test_ttl_counts_from_now(run_token: CommandRunner) -> None:
    assert await authenticate(run_token("jwt", "--secret", SECRET, "--ids", IDS, "--ttl", "1h")) == Accepted(
        IDS, 1_700_003_600.0
    )


async def test_explicit_expiry_is_kept_even_if_past(run_token: CommandRunner) -> None:
    assert await authenticate(run_token("jwt", "--secret", SECRET, "--ids", IDS, "--exp", "1700000060")) == Accepted(
        IDS, 1_700_000_060.0
    )
    assert await authenticate(run_token("jwt", "--secret", SECRET, "--ids", IDS, "--exp", "1")) == Refused("token_expired")


def test_signed_stream_matches_the_test_vector(run_token: CommandRunner) -> None:
    expected = "ImNoYXQ6MjAyMSI=--f9ee45dbccb1da04d8ceb99cc820207804370ba0d06b46fc3b8b373af1315628"
    assert run_token("stream", "chat:2021", "--secret", "s3Krit") == expected


def test_derived_keys_match_the_test_vectors(run_token: CommandRunner) -> None:
    assert run_token("keys", "--secret", "qwerty").splitlines() == [
        "ROPEWALK_BROADCAST_KEY=42923a28b760e667fc92f7c6123bb07a282822b329dd2ef48e7aee7830d98485",
        "ROPEWALK_API_SECRET=bdd0244b3664404d03b7d0c2f1b946dc4fc6c13fdcbfa2be62a4a28deb04d096",
        "ROPEWALK_JOURNAL_TOKEN=a8798ee6e029b73a8046fc8a8be8d691a7d2cb4d7808d860501fb4244c1f6602",
    ]


@pytest.mark.parametrize("variable", ["ROPEWALK_SECRET", "ANYCABLE_SECRET"])
async def test_secret_is_read_from_the_environment(
    run_token: CommandRunner, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, SECRET)
    assert await authenticate(run_token("jwt", "--ids", IDS)) == Accepted(IDS)
    assert verify_stream(run_token("stream", "chat"), SECRET) == "chat"
    assert run_token("keys") == run_token("keys", "--secret", SECRET)


async def test_specific_secret_takes_precedence_over_the_general_one(
    run_token: CommandRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROPEWALK_SECRET", "the general one")
    monkeypatch.setenv("ROPEWALK_JWT_SECRET", SECRET)
    monkeypatch.setenv("ROPEWALK_STREAMS_SECRET", "for streams")
    assert await authenticate(run_token("jwt", "--ids", IDS)) == Accepted(IDS)
    assert verify_stream(run_token("stream", "chat"), "for streams") == "chat"
    assert verify_stream(run_token("stream", "chat", "--secret", "given"), "given") == "chat"
    assert run_token("keys") == run_token("keys", "--secret", "the general one")


def test_secret_is_read_from_the_settings_file(run_token: CommandRunner, tmp_path: Path) -> None:
    (tmp_path / "ropewalk.toml").write_text('[auth]\nsecret = "in the file"\n')
    assert verify_stream(run_token("stream", "chat"), "in the file") == "chat"


def test_invalid_arguments_are_rejected_with_a_hint(subtests: pytest.Subtests) -> None:
    cases: list[tuple[list[str], str]] = [
        (["jwt", "--ids", IDS], "ROPEWALK_JWT_SECRET"),
        (["stream", "chat"], "ROPEWALK_STREAMS_SECRET"),
        (["keys"], "ROPEWALK_SECRET"),
        (["keys", "--secret", "none"], "ROPEWALK_SECRET"),
        (["jwt", "--ids", "", "--secret", SECRET], "--ids must not be empty"),
        (["stream", "", "--secret", SECRET], "NAME must not be empty"),
        (["stream", "n" * 513, "--secret", SECRET], "longer than the 512 bytes"),
        (["jwt", "--ids", IDS, "--secret", SECRET, "--ttl", "soon"], "--ttl wants a duration"),
        (["jwt", "--ids", IDS, "--secret", SECRET, "--ttl", "9" * 400], "--ttl wants a duration"),
        (["jwt", "--ids", IDS, "--secret", SECRET, "--exp", "1700000000000"], "not milliseconds"),
        (["jwt", "--ids", IDS, "--secret", SECRET, "--exp", "-1"], "years 1970 to 9999"),
        (["jwt", "--ids", IDS, "--secret", "ssh-rsa AAAA"], "JWT secret cannot be used"),
    ]
    for argv, hint in cases:
        with subtests.test(argv=argv), pytest.raises(UserMistake, match=hint):
            token.run(argv)


def test_disabled_secret_is_not_replaced_by_the_general_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROPEWALK_SECRET", SECRET)
    monkeypatch.setenv("ROPEWALK_JWT_SECRET", "none")
    with pytest.raises(UserMistake, match="a secret is needed"):
        token.run(["jwt", "--ids", IDS])


def test_wrong_usage_prints_the_usage(capsys: pytest.CaptureFixture[str], subtests: pytest.Subtests) -> None:
    cases: list[list[str]] = [[], ["cookie"], ["jwt"], ["stream"], ["jwt", "--ids", IDS, "--ttl", "1h", "--exp", "1"]]
    for argv in cases:
        with subtests.test(argv=argv):
            with pytest.raises(SystemExit) as exited:
                token.run(argv)
            assert exited.value.code == 2
            assert "usage: ropewalk token" in capsys.readouterr().err
