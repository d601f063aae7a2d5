"""Publishing in one call: which key is used, and where blocking is refused. The rest needs a server: tests/scenarios."""

import pytest

from ropewalk.client import direct
from ropewalk.client.direct import key_in
from ropewalk.core.signatures import API_PHRASE, derive
from ropewalk.model.errors import UserMistake


def test_one_secret_is_enough_for_the_key() -> None:
    assert key_in({"ROPEWALK_SECRET": "s3Krit"}) == derive("s3Krit", API_PHRASE)
    assert key_in({"ANYCABLE_SECRET": "s3Krit"}) == derive("s3Krit", API_PHRASE)


def test_a_key_of_its_own_comes_before_the_secret() -> None:
    assert key_in({"ROPEWALK_SECRET": "s3Krit", "ROPEWALK_API_SECRET": "own"}) == "own"
    assert key_in({"ROPEWALK_SECRET": "s3Krit", "ANYCABLE_API_SECRET": "own"}) == "own"


def test_our_variables_come_before_the_inherited_ones() -> None:
    assert key_in({"ROPEWALK_API_SECRET": "ours", "ANYCABLE_API_SECRET": "theirs"}) == "ours"
    assert key_in({"ROPEWALK_SECRET": "ours", "ANYCABLE_SECRET": "theirs"}) == derive("ours", API_PHRASE)


@pytest.mark.parametrize("environ", [{}, {"ROPEWALK_SECRET": "", "ROPEWALK_API_SECRET": ""}])
def test_without_a_secret_there_is_no_key(environ: dict[str, str]) -> None:
    assert key_in(environ) == ""


async def test_where_an_event_loop_runs_the_blocking_call_says_what_to_write_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "_configured", None)
    with pytest.raises(RuntimeError, match=r"await ropewalk\.apublish"):
        direct.publish("chat/1", "hi")


def test_an_address_that_is_none_is_said_at_once() -> None:
    with pytest.raises(UserMistake, match="not a server's URL"):
        direct.configure(url="localhost:8080")
