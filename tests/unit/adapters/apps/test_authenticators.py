"""Authenticators: which tokens are accepted and until when, and connections without one."""

import base64
import json
import logging
import warnings

import jwt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.adapters.apps.authenticators import (
    MAX_EXPIRY,
    MAX_TOKEN_LENGTH,
    JwtAuthenticator,
    NoAuth,
    SharedSecret,
    TokenRules,
    issue_token,
)
from ropewalk.model.errors import UserMistake
from ropewalk.model.sessions import Accepted, ConnectRequest, Refused
from ropewalk.testing.auth import request_with

SECRET = "a secret that is long enough for every one of the three HMAC hashes"
NOW = 1_700_000_000.0
IDS = '{"user":1}'
UNAUTHORIZED = Refused("unauthorized")


async def judge(token: str, *, secret: str = SECRET, enforce: bool = False) -> Accepted | Refused | None:
    authenticator = JwtAuthenticator([SharedSecret(secret)], TokenRules(enforce=enforce), lambda: NOW)
    return await authenticator.authenticate(request_with(token), "sid")


def signed(payload: str | dict[str, object], secret: str = SECRET, algorithm: str = "HS256") -> str:
    text = payload if isinstance(payload, str) else json.dumps(payload)
    return jwt.PyJWS().encode(text.encode(), secret, algorithm=algorithm)


async def test_signed_token_is_accepted_with_its_ext(subtests: pytest.Subtests) -> None:
    for algorithm in ["HS256", "HS384", "HS512"]:
        with subtests.test(algorithm=algorithm):
            assert await judge(signed({"ext": IDS}, algorithm=algorithm)) == Accepted(IDS)


async def test_token_of_another_library_is_accepted_until_it_expires() -> None:
    token = jwt.encode({"ext": IDS, "exp": int(NOW) + 60, "iat": int(NOW) + 999}, SECRET, algorithm="HS256")
    assert await judge(token) == Accepted(IDS, NOW + 60)


async def test_issued_token_is_accepted() -> None:
    assert await judge(issue_token(SECRET, IDS)) == Accepted(IDS)
    assert await judge(issue_token(SECRET, IDS, int(NOW) + 1)) == Accepted(IDS, NOW + 1)


async def test_missing_token_is_left_to_the_next_authenticator() -> None:
    assert await judge("") is None


async def test_missing_token_is_refused_if_enforced() -> None:
    assert await judge("", enforce=True) == UNAUTHORIZED


async def test_token_in_url_or_headers_is_not_used() -> None:
    token = signed({"ext": IDS})
    request = ConnectRequest(f"ws://localhost/cable?jid={token}", "/cable", {"x-jid": token}, {"jid": token})
    assert await JwtAuthenticator([SharedSecret(SECRET)]).authenticate(request, "sid") is None


async def test_invalid_token_is_refused_if_not_enforced() -> None:
    assert await judge("nonsense") == UNAUTHORIZED


async def test_expiry_is_compared_with_the_given_clock(subtests: pytest.Subtests) -> None:
    for ahead, answer in [(0.5, Accepted(IDS, NOW + 0.5)), (0, Refused("token_expired")), (-1, Refused("token_expired"))]:
        with subtests.test(ahead=ahead, answer=answer):
            assert await judge(signed({"ext": IDS, "exp": NOW + ahead})) == answer


async def test_not_before_is_compared_with_the_given_clock(subtests: pytest.Subtests) -> None:
    for ahead, answer in [(-1, Accepted(IDS)), (0, Accepted(IDS)), (0.5, UNAUTHORIZED)]:
        with subtests.test(ahead=ahead, answer=answer):
            assert await judge(signed({"ext": IDS, "nbf": NOW + ahead})) == answer


async def test_expired_token_with_a_wrong_signature_is_unauthorized() -> None:
    assert await judge(signed({"ext": IDS, "exp": 1}, secret="another secret, as long as the real one is")) == UNAUTHORIZED


async def test_ext_that_is_not_a_string_is_refused(subtests: pytest.Subtests) -> None:
    for ext in ["", 1, True, None, ["a"], {"user": 1}]:
        with subtests.test(ext=ext):
            assert await judge(signed({"ext": ext})) == UNAUTHORIZED


async def test_signed_payload_without_valid_claims_is_refused(subtests: pytest.Subtests) -> None:
    for payload in ["", "{}", "[]", "null", '"ext"', "{", '{"exp":1}', "[" * 3000, '{"ext":"\\ud800"}']:
        with subtests.test(payload=payload):
            assert await judge(signed(payload)) == UNAUTHORIZED


async def test_time_that_is_not_a_finite_number_is_refused(subtests: pytest.Subtests) -> None:
    for claim in ["exp", "nbf"]:
        for value in ["null", "true", '"1700000060"', "NaN", "Infinity", "-Infinity", "1e400", "9" * 400, "[]", "{}"]:
            with subtests.test(claim=claim, value=value):
                assert await judge(signed(f'{{"ext":"me","{claim}":{value}}}')) == UNAUTHORIZED


async def test_expiry_beyond_the_latest_one_is_refused(subtests: pytest.Subtests) -> None:
    for value in ["1e300", "253402300800", "1700000060000"]:
        with subtests.test(value=value):
            assert await judge(signed(f'{{"ext":"me","exp":{value}}}')) == UNAUTHORIZED


async def test_latest_expiry_is_accepted() -> None:
    assert await judge(signed({"ext": "me", "exp": MAX_EXPIRY})) == Accepted("me", MAX_EXPIRY)


async def test_token_longer_than_the_limit_is_refused() -> None:
    def of_length(extra: int) -> str:
        return signed({"ext": "e" * extra})

    longest = max(filter(lambda token: len(token) <= MAX_TOKEN_LENGTH, map(of_length, range(6000, 6200))), key=len)
    assert isinstance(await judge(longest), Accepted)
    assert await judge(of_length(6200)) == UNAUTHORIZED


def unsigned(header: dict[str, object]) -> str:
    segments = (json.dumps(part).encode() for part in (header, {"ext": "root"}))
    return ".".join(base64.urlsafe_b64encode(text).decode().rstrip("=") for text in segments) + "."


async def test_other_algorithms_are_refused(subtests: pytest.Subtests) -> None:
    for algorithm in ["none", "None", "", "RS256", "ES256", "hs256", "HS1", None, 256, ["HS256"]]:
        with subtests.test(algorithm=algorithm):
            assert await judge(unsigned({"alg": algorithm})) == UNAUTHORIZED


@given(st.data())
async def test_token_with_a_changed_character_is_refused(data: st.DataObject) -> None:
    token = issue_token(SECRET, IDS, int(NOW) + 60)
    place = data.draw(st.integers(0, len(token) - 1))
    character = data.draw(st.characters(exclude_categories=(), exclude_characters=token[place]))
    assert await judge(token[:place] + character + token[place + 1 :]) == UNAUTHORIZED


@given(st.text(alphabet=st.characters(exclude_categories=()), min_size=1))
async def test_arbitrary_text_is_refused(token: str) -> None:
    assert await judge(token) == UNAUTHORIZED


def test_unusable_secret_is_refused(subtests: pytest.Subtests) -> None:
    for secret in ["", "-----BEGIN PUBLIC KEY-----\nAA==\n-----END PUBLIC KEY-----", "ssh-rsa AAAA"]:
        with subtests.test(secret=secret):
            with pytest.raises(UserMistake, match="JWT secret"):
                SharedSecret(secret)
            with pytest.raises(UserMistake, match="JWT secret"):
                issue_token(secret, IDS)


async def test_short_secret_works_and_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), warnings.catch_warnings():
        warnings.simplefilter("error")
        authenticator = JwtAuthenticator([SharedSecret("qwerty")], clock=lambda: NOW)
        token = request_with(issue_token("qwerty", IDS))
        assert [await authenticator.authenticate(token, "sid") for _ in range(3)] == [Accepted(IDS)] * 3
    assert [record.levelname for record in caplog.records] == ["WARNING"]


async def test_log_has_the_reason_of_a_refusal_and_not_the_token(caplog: pytest.LogCaptureFixture) -> None:
    token = signed({"ext": IDS}, secret="another secret, as long as the real one is")
    with caplog.at_level(logging.DEBUG):
        await judge(token)
    [record] = caplog.records
    assert "Signature" in str(record.__dict__["why"])
    assert token not in str(record.__dict__)


async def test_connection_without_authentication_is_identified_by_its_sid() -> None:
    answer = await NoAuth().authenticate(request_with(""), "abc123")
    assert answer.ids == '{"sid":"abc123"}'
    assert answer.expires_at is None


async def test_special_characters_in_a_sid_are_escaped() -> None:
    answer = await NoAuth().authenticate(request_with("any token at all"), 'a"b\\')
    assert json.loads(answer.ids) == {"sid": 'a"b\\'}
