"""Tokens of an identity provider: their signatures are checked with the public keys that it serves as a JSON Web Key Set.

Keys are fetched when they are needed, and again in the background while they are in use. Known keys stay in use while the
provider does not answer. A token that names an unknown key makes the server look for new ones, at most every `BETWEEN_FETCHES`
seconds however many such tokens come.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping

import jwt
import msgspec
from jwt.algorithms import has_crypto
from msgspec import Struct

from ropewalk.model.errors import Unavailable, UserMistake
from ropewalk.model.extras import install_command
from ropewalk.ports import Clock

logger = logging.getLogger("ropewalk.adapters")

Fetch = Callable[[str], Awaitable[bytes]]
"""Returns the body of a URL. Raises `Unavailable`."""

FRESH_SECONDS = 300.0
"""Age at which keys are fetched again, while they stay in use."""

STALE_SECONDS = 3600.0
"""Age at which a client waits for this: a key may have been withdrawn while nobody connected."""

BETWEEN_FETCHES = 10.0
MAX_KEYS = 100
MAX_SET_BYTES = 256 * 1024
MIN_RSA_BITS = 2048
FETCH_SECONDS = 5.0

ALGORITHMS = frozenset({*("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), *("ES256", "ES384", "ES512", "EdDSA")})
"""All with a public key. A secret in the set is ignored: everyone can read it."""


class IssuerKeys:
    """Implements `TokenVerifier`.

    Args:
        url: where the key set is.
        fetch: reads it.
    """

    def __init__(self, url: str, fetch: Fetch, clock: Clock = time.monotonic) -> None:
        """Raises UserMistake if the extra is not installed."""
        if not has_crypto:
            raise UserMistake(f"--jwks_url needs a package: {install_command('jwks')}")
        self._url = url
        self._fetch = fetch
        self._clock = clock
        self._keys: Mapping[str, jwt.PyJWK] | None = None
        self._fetched_at = self._tried_at = float("-inf")
        self._fetching: asyncio.Task[None] | None = None
        self._failed = False
        self._jws = jwt.PyJWS(algorithms=list(ALGORITHMS))

    @property
    def algorithms(self) -> frozenset[str]:
        return ALGORITHMS

    async def payload(self, token: str) -> bytes:
        """Raises `jwt.PyJWTError` for a token that no key of the provider has signed, and `Unavailable` if none is known."""
        key = await self._find(jwt.get_unverified_header(token).get("kid", ""))
        payload: bytes = self._jws.decode(token, key.key, algorithms=[key.algorithm_name])
        return payload

    async def _find(self, kid: str) -> jwt.PyJWK:
        age = self._clock() - self._fetched_at
        if age > FRESH_SECONDS:
            self._begin_fetch()
            if age > STALE_SECONDS:
                await self._fetched()
        if self._keys is None:
            raise Unavailable("the keys of --jwks_url are not known")
        if (key := _chosen(self._keys, kid)) is None:
            self._begin_fetch()
            await self._fetched()
            key = _chosen(self._keys, kid)
        if key is None:
            raise jwt.InvalidKeyError("the provider has no such key")
        return key

    def _begin_fetch(self) -> None:
        if self._fetching is None and self._clock() - self._tried_at >= BETWEEN_FETCHES:
            self._tried_at = self._clock()
            self._fetching = asyncio.get_running_loop().create_task(self._refresh())

    async def _fetched(self) -> None:
        if self._fetching is not None:
            await asyncio.wait([self._fetching])

    async def _refresh(self) -> None:
        try:
            self._keys = read_key_set(await self._fetch(self._url))
        except Unavailable as error:
            logger.log(
                logging.DEBUG if self._failed else logging.WARNING,
                "the keys of --jwks_url are not read; %s",
                "the known ones stay in use" if self._keys else "clients with its tokens cannot connect",
                extra={"reason": str(error)},
            )
            self._failed = True
        except Exception:
            logger.exception("the keys of --jwks_url cannot be read")
        else:
            self._fetched_at = self._clock()
            if self._failed:
                logger.info("the keys of --jwks_url are read again")
            self._failed = False
        finally:
            self._fetching = None


class _KeySet(Struct):
    keys: list[dict[str, object]]


def read_key_set(body: bytes) -> dict[str, jwt.PyJWK]:
    """The public keys for signatures, by their id. Keys that cannot be used are left out. Raises `Unavailable`."""
    try:
        found = msgspec.json.decode(body, type=_KeySet).keys
    except (msgspec.DecodeError, RecursionError):
        raise Unavailable("this is not a JSON Web Key Set") from None
    keys: dict[str, jwt.PyJWK] = {}
    for entry in found[:MAX_KEYS]:
        if entry.get("kty") == "oct" or entry.get("use", "sig") != "sig":
            continue
        try:
            key = jwt.PyJWK(entry)
        except (jwt.PyJWTError, ValueError, TypeError) as error:
            logger.debug("a key of --jwks_url is left out", extra={"reason": str(error)})
            continue
        if key.algorithm_name in ALGORITHMS and getattr(key.key, "key_size", MIN_RSA_BITS) >= _min_bits(key):
            keys[str(entry.get("kid", ""))] = key
    if not keys:
        raise Unavailable("it has no public key for signatures")
    return keys


def _min_bits(key: jwt.PyJWK) -> int:
    return MIN_RSA_BITS if key.key_type == "RSA" else 0


def _chosen(keys: Mapping[str, jwt.PyJWK], kid: str) -> jwt.PyJWK | None:
    """A token without a key id can only mean the only key."""
    if not kid and len(keys) == 1:
        return next(iter(keys.values()))
    return keys.get(kid)


async def fetch(url: str) -> bytes:
    """Redirects are not followed. Raises `Unavailable`."""
    import aiohttp

    try:
        timeout = aiohttp.ClientTimeout(total=FETCH_SECONDS)
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url, allow_redirects=False) as response:
            if response.status != 200:
                raise Unavailable(f"the answer has the status {response.status}")
            body = await response.content.read(MAX_SET_BYTES + 1)
            while len(body) <= MAX_SET_BYTES and (more := await response.content.read(MAX_SET_BYTES + 1 - len(body))):
                body += more
    except TimeoutError:
        raise Unavailable(f"no answer within {FETCH_SECONDS:g} s") from None
    except (aiohttp.ClientError, OSError) as error:
        raise Unavailable(str(error) or type(error).__name__) from None
    if len(body) > MAX_SET_BYTES:
        raise Unavailable(f"the answer has more than {MAX_SET_BYTES} bytes")
    return body
