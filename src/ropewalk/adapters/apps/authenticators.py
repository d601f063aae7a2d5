"""Authenticators that need no application: by a JSON Web Token, or without authentication.

Tokens are signed with HMAC and the shared secret, or by an identity provider (`jwks`). Expiry goes by the given clock only:
without leeway, and without the library's own clock.
"""

import logging
import time
from collections.abc import Collection, Sequence
from typing import Protocol

import jwt
import msgspec
from jwt.algorithms import HMACAlgorithm
from msgspec import UNSET, Struct, UnsetType

from ropewalk.model.errors import UserMistake
from ropewalk.model.nesting import TOO_DEEP, is_too_deep
from ropewalk.model.sessions import Accepted, ConnectRequest, Refused
from ropewalk.ports import Clock

log = logging.getLogger("ropewalk.adapters")

# The end of the year 9999. Later times are mistakes (usually milliseconds), and timers may not be able to hold them.
MAX_EXPIRY = 253_402_300_799.0

# Common servers limit headers and query strings to this, too. Bounds the work for an unauthenticated client.
MAX_TOKEN_LENGTH = 8192

MIN_SAFE_SECRET_BYTES = 32  # RFC 7518 section 3.2: as long as the hash; most applications sign with HS256

_UNAUTHORIZED = Refused("unauthorized")
_EXPIRED = Refused("token_expired")


class _Hmac(HMACAlgorithm):
    """HMAC without a check of the secret's length: a short one is logged once at the start, not for every connection."""

    def check_key_length(self, key: bytes) -> None:
        return None


class _Claims(Struct):
    """The claims in use. `ext` are the connection's ids, usually JSON text."""

    exp: float | UnsetType = UNSET
    nbf: float | UnsetType = UNSET
    iss: str | UnsetType = UNSET
    aud: str | list[str] | UnsetType = UNSET


class _ExtClaims(_Claims, kw_only=True):
    ext: str

    @property
    def ids(self) -> str:
        return self.ext


class _SubClaims(_Claims, kw_only=True):
    sub: str

    @property
    def ids(self) -> str:
        return msgspec.json.encode({"sub": self.sub}).decode() if self.sub else ""


class TokenRules(Struct, frozen=True):
    """Requirements of a token besides its signature. An empty text requires nothing.

    Args:
        param: the name of the token's query parameter, for the log.
        enforce: refuse connections without a token.
        identity: the claim that identifies the client, `ext` or `sub`.
    """

    param: str = "jid"
    enforce: bool = False
    issuer: str = ""
    audience: str = ""
    identity: str = "ext"


ANY_TOKEN = TokenRules()


class TokenVerifier(Protocol):
    """Checks signatures.

    Attributes:
        algorithms: of the tokens that it checks.
    """

    @property
    def algorithms(self) -> Collection[str]: ...

    async def payload(self, token: str) -> bytes:
        """The claims. Raises `jwt.PyJWTError` for a wrong signature, `Unavailable` if that cannot be decided now."""


_ALGORITHMS = {
    "HS256": _Hmac(HMACAlgorithm.SHA256),
    "HS384": _Hmac(HMACAlgorithm.SHA384),
    "HS512": _Hmac(HMACAlgorithm.SHA512),
}


def _hmac_only() -> jwt.PyJWS:
    """Without any other algorithm, so that a token's header cannot choose one."""
    jws = jwt.PyJWS(algorithms=[])
    for name, algorithm in _ALGORITHMS.items():
        jws.register_algorithm(name, algorithm)
    return jws


_jws = _hmac_only()


class SharedSecret:
    """Implements `TokenVerifier` for tokens of the application."""

    algorithms = frozenset(_ALGORITHMS)

    def __init__(self, secret: str) -> None:
        """Raises UserMistake."""
        self._key = _prepare_key(secret)
        if len(self._key) < MIN_SAFE_SECRET_BYTES:
            log.warning("the JWT secret is short", extra={"bytes": len(self._key), "recommended": MIN_SAFE_SECRET_BYTES})

    async def payload(self, token: str) -> bytes:
        payload: bytes = _jws.decode(token, self._key, algorithms=list(_ALGORITHMS))
        return payload


class JwtAuthenticator:
    """Authenticates a connection by the token in its request.

    A valid token without its identity (a string that is not empty) is refused as unauthorized: the reference server closes with
    1011 instead, but the mistake is in the token, and reconnecting with it cannot succeed.

    Args:
        verifiers: one for each kind of tokens, with different algorithms.
    """

    def __init__(self, verifiers: Sequence[TokenVerifier], rules: TokenRules = ANY_TOKEN, clock: Clock = time.time) -> None:
        self._verifiers = verifiers
        self._rules = rules
        self._claims: type[_ExtClaims | _SubClaims] = _SubClaims if rules.identity == "sub" else _ExtClaims
        self._clock = clock

    async def authenticate(self, request: ConnectRequest, sid: str) -> Accepted | Refused | None:
        """Returns None only for a connection without a token, and only if tokens are not enforced."""
        if not request.token:
            return _UNAUTHORIZED if self._rules.enforce else None
        try:
            claims = await self._verify(request.token)
        except (jwt.PyJWTError, ValueError, RecursionError) as error:  # the library's versions raise different errors
            log.debug("token refused", extra={"sid": sid, "param": self._rules.param, "why": str(error)})
            return _UNAUTHORIZED
        return self._check_times(claims)

    async def _verify(self, token: str) -> _ExtClaims | _SubClaims:
        """Raises for a token that is too long, not signed as it must be, malformed, or not for this server."""
        if len(token) > MAX_TOKEN_LENGTH:
            raise ValueError(f"longer than {MAX_TOKEN_LENGTH} characters")
        payload = await self._verifier(token).payload(token)
        if is_too_deep(payload):
            raise ValueError(f"the claims are {TOO_DEEP}")
        claims = msgspec.json.decode(payload, type=self._claims)
        rules = self._rules
        if not claims.ids:
            raise ValueError(f"{rules.identity} is empty")
        if rules.issuer and claims.iss != rules.issuer:
            raise ValueError("it is of another issuer")
        if rules.audience and rules.audience not in ([claims.aud] if isinstance(claims.aud, str) else claims.aud or ()):
            raise ValueError("it is for another audience")
        if claims.exp is not UNSET and claims.exp > MAX_EXPIRY:
            raise ValueError("exp is not a time in seconds")
        return claims

    def _verifier(self, token: str) -> TokenVerifier:
        if len(self._verifiers) == 1:
            return self._verifiers[0]
        algorithm = jwt.get_unverified_header(token).get("alg")
        for verifier in self._verifiers:
            if isinstance(algorithm, str) and algorithm in verifier.algorithms:
                return verifier
        raise jwt.InvalidAlgorithmError("the algorithm is not allowed")

    def _check_times(self, claims: _ExtClaims | _SubClaims) -> Accepted | Refused:
        now = self._clock()
        expires_at = None if claims.exp is UNSET else claims.exp
        if expires_at is not None and expires_at <= now:
            return _EXPIRED
        if claims.nbf is not UNSET and claims.nbf > now:
            return _UNAUTHORIZED
        return Accepted(claims.ids, expires_at)


class NoAuth:
    """Accepts every connection, identified by its own sid. Use it last: it accepts what the others did not decide."""

    async def authenticate(self, request: ConnectRequest, sid: str) -> Accepted:
        return Accepted(msgspec.json.encode({"sid": sid}).decode(), anonymous=True)


def issue_token(secret: str, ids: str, expires_at: int | None = None) -> str:
    """Returns a token that `JwtAuthenticator` accepts as `ids`. Raises UserMistake for a secret that cannot sign."""
    claims: dict[str, object] = {"ext": ids} if expires_at is None else {"ext": ids, "exp": expires_at}
    return _jws.encode(msgspec.json.encode(claims), _prepare_key(secret), algorithm="HS256")


def _prepare_key(secret: str) -> bytes:
    """Raises UserMistake for a secret that is empty or looks like another kind of key, such as a PEM file."""
    if not secret:
        raise UserMistake("the JWT secret is empty: set --jwt_secret or --secret")
    try:
        return _ALGORITHMS["HS256"].prepare_key(secret.encode("utf-8", "surrogateescape"))
    except jwt.InvalidKeyError as error:
        raise UserMistake(f"the JWT secret cannot be used: {error}") from None
