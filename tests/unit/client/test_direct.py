"""Publishing in one call: the key, and the rejection of blocking calls on a loop. The rest is in tests/scenarios."""

import pytest

from ropewalk.client import direct
from ropewalk.client.direct import key_in
from ropewalk.core.signatures import API_PHRASE, derive
from ropewalk.model.errors import UserMistake


def test_key_is_derived_from_the_secret() -> None:
    assert key_in({"ROPEWALK_SECRET": "s3Krit"}) == derive("s3Krit", API_PHRASE)
    assert key_in({"ANYCABLE_SECRET": "s3Krit"}) == derive("s3Krit", API_PHRASE)


def test_explicit_key_takes_precedence_over_the_secret() -> None:
    assert key_in({"ROPEWALK_SECRET": "s3Krit", "ROPEWALK_API_SECRET": "own"}) == "own"
    assert key_in({"ROPEWALK_SECRET": "s3Krit", "ANYCABLE_API_SECRET": "own"}) == "own"


def test_ropewalk_variables_take_precedence_over_anycable_ones() -> None:
    assert key_in({"ROPEWALK_API_SECRET": "ours", "ANYCABLE_API_SECRET": "theirs"}) == "ours"
    assert key_in({"ROPEWALK_SECRET": "ours", "ANYCABLE_SECRET": "theirs"}) == derive("ours", API_PHRASE)


def test_key_is_empty_without_a_secret(subtests: pytest.Subtests) -> None:
    cases: list[dict[str, str]] = [{}, {"ROPEWALK_SECRET": "", "ROPEWALK_API_SECRET": ""}]
    for environ in cases:
        with subtests.test(environ=environ):
            assert key_in(environ) == ""


async def test_blocking_publish_on_an_event_loop_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "_configured", None)
    with pytest.raises(RuntimeError, match=r"await ropewalk\.apublish"):
        direct.publish("chat/1", "hi")


def test_invalid_address_is_rejected_by_configure() -> None:
    with pytest.raises(UserMistake, match="not a server's URL"):
        direct.configure(url="localhost:8080")
