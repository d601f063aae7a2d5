"""Tokens of an identity provider: which keys count, and when they are fetched."""

import asyncio
import base64
import json

import jwt
import pytest

from ropewalk.adapters.apps.authenticators import JwtAuthenticator, SharedSecret, TokenRules, issue_token
from ropewalk.adapters.apps.jwks import BETWEEN_FETCHES, FRESH_SECONDS, STALE_SECONDS, IssuerKeys, read_key_set
from ropewalk.model.errors import Unavailable
from ropewalk.model.sessions import Accepted, Refused
from ropewalk.testing.auth import request_with
from tests.identity_provider import AUDIENCE, ProviderKey, ec_key, ed_key, key_set, rsa_key

RSA, OTHER_RSA = rsa_key("a"), rsa_key("b")
SECRET = "a secret of the application, as long as it has to be"
UNAUTHORIZED = Refused("unauthorized")
JANE = Accepted('{"sub":"jane"}')


class Provider:
    """Answers with `body`; with an error if that is None; not before `answers`, if that is set."""

    def __init__(self, *keys: ProviderKey) -> None:
        self.body: bytes | None = key_set(*keys)
        self.asked = 0
        self.answers: asyncio.Event | None = None
        self.now = 1000.0
        self.keys = IssuerKeys("https://provider", self.fetch, lambda: self.now)

    async def fetch(self, url: str) -> bytes:
        self.asked += 1
        if self.answers is not None:
            await self.answers.wait()
        if self.body is None:
            raise Unavailable("away")
        return self.body

    async def judge(self, token: str, **rules: str) -> Accepted | Refused | None:
        chosen = TokenRules(**{"audience": AUDIENCE, "identity": "sub", **rules})  # type: ignore[arg-type]
        return await JwtAuthenticator([SharedSecret(SECRET), self.keys], chosen).authenticate(request_with(token), "sid")


@pytest.mark.parametrize("key", [RSA, rsa_key("p", "PS256"), ec_key("e"), ed_key("d")], ids=lambda key: key.algorithm)
async def test_token_that_a_key_of_the_set_has_signed_is_accepted(key: ProviderKey) -> None:
    assert await Provider(OTHER_RSA, key).judge(key.sign(sub="jane")) == JANE


async def test_token_without_a_key_id_can_only_mean_the_only_key() -> None:
    nameless = ProviderKey("", "RS256", RSA.private)
    assert await Provider(RSA).judge(nameless.sign(sub="jane")) == JANE
    assert await Provider(RSA, OTHER_RSA).judge(nameless.sign(sub="jane")) == UNAUTHORIZED


async def test_token_must_be_for_this_audience_of_this_issuer_and_have_an_identity() -> None:
    provider = Provider(RSA)
    assert await provider.judge(RSA.sign(sub="jane", aud=["x", AUDIENCE], iss="us"), issuer="us") == JANE
    assert await provider.judge(RSA.sign(sub="jane", aud="another"), issuer="") == UNAUTHORIZED
    assert await provider.judge(RSA.sign(sub="jane", aud=[])) == UNAUTHORIZED
    assert await provider.judge(RSA.sign(sub="jane", iss="them"), issuer="us") == UNAUTHORIZED
    assert await provider.judge(RSA.sign(sub="jane"), issuer="us") == UNAUTHORIZED
    assert await provider.judge(RSA.sign(sub="")) == UNAUTHORIZED
    assert await provider.judge(RSA.sign(ext="jane")) == UNAUTHORIZED
    assert await provider.judge(RSA.sign(ext="jane"), identity="ext") == Accepted("jane")
    assert await provider.judge(RSA.sign(sub="jane", exp=1)) == Refused("token_expired")


async def test_tokens_of_the_application_and_of_the_provider_are_told_apart_by_their_algorithm() -> None:
    provider = Provider(RSA)
    assert await provider.judge(issue_token(SECRET, "jane"), audience="", identity="ext") == Accepted("jane")
    assert provider.asked == 0
    for secret in (RSA.public["n"], json.dumps(RSA.public, indent=0)[1:]):  # what everyone can read is no secret
        forged = jwt.PyJWS().encode(b'{"sub":"jane","aud":"our-app"}', secret.encode(), "HS256", {"kid": "a"})
        assert await provider.judge(forged) == UNAUTHORIZED
    algorithms: list[object] = [["HS256"], {}, 1, None, "RS999"]
    for algorithm in algorithms:  # a header is what the client likes
        header, claims = (base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in ({"alg": algorithm}, {}))
        assert await provider.judge(b".".join((header, claims, b"AAAA")).decode()) == UNAUTHORIZED
    unsigned = jwt.encode({"sub": "jane", "aud": AUDIENCE}, "", "none", {"kid": "a"})
    assert await provider.judge(unsigned) == UNAUTHORIZED


async def test_key_of_another_algorithm_does_not_count() -> None:
    provider = Provider(RSA)
    assert await provider.judge(ProviderKey("a", "RS512", RSA.private).sign(sub="jane")) == UNAUTHORIZED
    assert await provider.judge(ec_key("a").sign(sub="jane")) == UNAUTHORIZED


def test_secrets_and_keys_that_cannot_be_used_are_left_out() -> None:
    entries = [
        {"kty": "oct", "kid": "secret", "k": "c2VjcmV0", "alg": "HS256"},
        {**RSA.public, "kid": "encryption", "use": "enc"},
        {**RSA.public, "kid": "hmac", "alg": "HS256"},
        {"kty": "RSA", "kid": "broken", "n": "!", "e": "AQAB"},
        {"kid": "empty"},
        {**rsa_key("short", bits=1024).public},
        RSA.public,
    ]
    assert list(read_key_set(json.dumps({"keys": entries}).encode())) == ["a"]
    for body in (b"", b"[]", b"{}", b'{"keys":1}', b'{"keys":[]}', b'{"keys":[1]}', b"[" * 10_000):
        with pytest.raises(Unavailable):
            read_key_set(body)


async def test_keys_are_fetched_once_and_again_in_the_background() -> None:
    provider = Provider(RSA)
    answers = await asyncio.gather(*(provider.judge(RSA.sign(sub="jane")) for _ in range(10)))
    assert (answers, provider.asked) == ([JANE] * 10, 1)
    provider.now += FRESH_SECONDS + 1
    provider.answers = asyncio.Event()
    assert await provider.judge(RSA.sign(sub="jane")) == JANE
    await asyncio.sleep(0)
    assert provider.asked == 2
    provider.answers.set()


async def test_new_key_is_looked_for_at_once_but_not_for_every_forgery() -> None:
    provider = Provider(RSA)
    assert await provider.judge(RSA.sign(sub="jane")) == JANE
    provider.body = key_set(OTHER_RSA)
    provider.now += BETWEEN_FETCHES
    assert await provider.judge(OTHER_RSA.sign(sub="jane")) == JANE
    assert await provider.judge(RSA.sign(sub="jane")) == UNAUTHORIZED
    assert {await provider.judge(rsa_key_token) for rsa_key_token in [ec_key("x").sign(sub="j")] * 50} == {UNAUTHORIZED}
    assert provider.asked == 2


async def test_known_keys_stay_in_use_while_the_provider_is_away() -> None:
    provider = Provider(RSA)
    assert await provider.judge(RSA.sign(sub="jane")) == JANE
    provider.body = None
    for _ in range(3):
        provider.now += STALE_SECONDS + 1
        assert await provider.judge(RSA.sign(sub="jane")) == JANE
    assert provider.asked == 4


async def test_withdrawn_key_does_not_count_after_a_pause() -> None:
    provider = Provider(RSA)
    assert await provider.judge(RSA.sign(sub="jane")) == JANE
    provider.body = key_set(OTHER_RSA)
    provider.now += STALE_SECONDS + 1
    assert await provider.judge(RSA.sign(sub="jane")) == UNAUTHORIZED


async def test_client_is_not_refused_for_good_while_no_key_is_known() -> None:
    provider = Provider(RSA)
    provider.body = None
    for _ in range(3):
        with pytest.raises(Unavailable):
            await provider.judge(RSA.sign(sub="jane"))
    assert provider.asked == 1
    provider.body = key_set(RSA)
    provider.now += BETWEEN_FETCHES
    assert await provider.judge(RSA.sign(sub="jane")) == JANE
