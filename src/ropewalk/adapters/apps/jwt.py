"""Connections known by a JSON Web Token that the application signed with the shared secret.

Only HMAC tokens count, and only the clock that was passed in: no leeway, no library reading the time for itself.
"""

import logging
import time

import jwt
import msgspec
from jwt.algorithms import HMACAlgorithm
from msgspec import UNSET, Struct, UnsetType

from ropewalk.model.errors import UserMistake
from ropewalk.model.nesting import TOO_DEEP, too_deep
from ropewalk.model.sessions import Accepted, ConnectRequest, Refused
from ropewalk.ports import Clock

log = logging.getLogger("ropewalk.adapters")

# The end of the year 9999. Later times are mistakes (milliseconds, mostly), and timers need not be able to hold them.
LATEST_EXPIRY = 253_402_300_799.0

# Headers and query strings of common servers end here too; verifying more would be work done for a stranger.
MAX_TOKEN_LENGTH = 8192

SAFE_SECRET_LENGTH = 32  # RFC 7518 section 3.2: no shorter than the hash, and HS256 is what most applications sign with

_UNAUTHORIZED = Refused("unauthorized")
_EXPIRED = Refused("token_expired")


class _Hmac(HMACAlgorithm):
    """HMAC that leaves the secret's length to the operator, who is told once at start and not at every connection."""

    def check_key_length(self, key: bytes) -> None:
        return None


class _Claims(Struct):
    """What counts of a token. `ext` are the connection's ids as the application wrote them, usually JSON text."""

    ext: str
    exp: float | UnsetType = UNSET
    nbf: float | UnsetType = UNSET


_ALGORITHMS = {
    "HS256": _Hmac(HMACAlgorithm.SHA256),
    "HS384": _Hmac(HMACAlgorithm.SHA384),
    "HS512": _Hmac(HMACAlgorithm.SHA512),
}


def _hmac_only() -> jwt.PyJWS:
    """Knows no other algorithm at all, so that none can be talked into use by a token's header."""
    jws = jwt.PyJWS(algorithms=[])
    for name, algorithm in _ALGORITHMS.items():
        jws.register_algorithm(name, algorithm)
    return jws


_jws = _hmac_only()


class JwtAuthenticator:
    """Knows a connection by the token in its request; `param` is the name under which endpoints look for it.

    A token that is valid but has no `ext` (a string that is not empty) is refused as unauthorized: the reference server
    closes with 1011 there, but the mistake is in the token, and a client that comes back with it gains nothing.
    """

    def __init__(self, secret: str, param: str = "jid", enforce: bool = False, clock: Clock = time.time) -> None:
        self._key = _key(secret)
        if len(self._key) < SAFE_SECRET_LENGTH:
            log.warning("the JWT secret is short", extra={"bytes": len(self._key), "recommended": SAFE_SECRET_LENGTH})
        self._param = param
        self._enforce = enforce
        self._clock = clock

    async def authenticate(self, request: ConnectRequest, sid: str) -> Accepted | Refused | None:
        """None only without a token, and only where tokens are not enforced: a bad token is never overlooked."""
        if not request.token:
            return _UNAUTHORIZED if self._enforce else None
        try:
            claims = self._claims(request.token)
        except (jwt.PyJWTError, ValueError, RecursionError) as error:  # the library's versions differ in what they raise
            log.debug("token refused", extra={"sid": sid, "param": self._param, "why": str(error)})
            return _UNAUTHORIZED
        return self._judge(claims)

    def _claims(self, token: str) -> _Claims:
        """Raises for a token that is too long, not signed with the secret, or not of the right shape."""
        if len(token) > MAX_TOKEN_LENGTH:
            raise ValueError(f"longer than {MAX_TOKEN_LENGTH} characters")
        payload: bytes = _jws.decode(token, self._key, algorithms=list(_ALGORITHMS))
        if too_deep(payload):
            raise ValueError(f"its claims are {TOO_DEEP}")
        claims = msgspec.json.decode(payload, type=_Claims)
        if not claims.ext:
            raise ValueError("ext is empty")
        if claims.exp is not UNSET and claims.exp > LATEST_EXPIRY:
            raise ValueError("exp is not a time in seconds")
        return claims

    def _judge(self, claims: _Claims) -> Accepted | Refused:
        now = self._clock()
        expires_at = None if claims.exp is UNSET else claims.exp
        if expires_at is not None and expires_at <= now:
            return _EXPIRED
        if claims.nbf is not UNSET and claims.nbf > now:
            return _UNAUTHORIZED
        return Accepted(claims.ext, expires_at)


def issue(secret: str, ids: str, expires_at: int | None = None) -> str:
    """A token that `JwtAuthenticator` accepts as `ids`. Raises UserMistake for a secret that cannot sign."""
    claims: dict[str, object] = {"ext": ids} if expires_at is None else {"ext": ids, "exp": expires_at}
    return _jws.encode(msgspec.json.encode(claims), _key(secret), algorithm="HS256")


def _key(secret: str) -> bytes:
    """The secret's bytes, or UserMistake where it is empty or plainly another kind of key, before any token is judged by it."""
    if not secret:
        raise UserMistake("the JWT secret is empty: set --jwt_secret or --secret")
    try:
        return _ALGORITHMS["HS256"].prepare_key(secret.encode("utf-8", "surrogateescape"))
    except jwt.InvalidKeyError as error:
        raise UserMistake(f"the JWT secret cannot be used: {error}") from None
