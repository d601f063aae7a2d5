"""Derived bearer keys and signed stream names, all made from one secret.

An empty secret signs nothing, verifies nothing and matches nothing. Every comparison takes constant time.
"""

import base64
import hashlib
import hmac
import json
import re

from ropewalk.model.nesting import is_too_deep

BROADCAST_PHRASE = "broadcast-cable"
API_PHRASE = "api-cable"
JOURNAL_PHRASE = "journal-cable"
RPC_PHRASE = "rpc-cable"
SESSIONS_PHRASE = "sessions-cable"
RING_PHRASE = "ring-cable"
RING_CHANGES_PHRASE = "ring-changes-cable"
NATS_ROUTES_PHRASE = "nats-routes-cable"

_SEPARATOR = "--"
_TO_STANDARD = str.maketrans("-_", "+/")
_HALF_PAIR = re.compile("[\ud800-\udfff]")


def derive(secret: str, phrase: str) -> str:
    """The bearer key of publishers, API callers or the RPC application. Raises ValueError without a secret."""
    return _digest(secret, phrase)


def sign_stream(name: str, secret: str) -> str:
    """Returns the signed form of a stream's name, for a client. Raises ValueError without a secret."""
    text = json.dumps(name, ensure_ascii=False).encode()
    encoded = base64.b64encode(text).decode()
    return encoded + _SEPARATOR + _digest(secret, encoded)


def verify_stream(signed: str, secret: str) -> str | None:
    """Returns the stream's name, or None if the secret is empty or the signature does not match.

    Signers use the standard base64 alphabet or the URL-safe one, with or without padding. The signature covers the encoded
    text. Only the last `--` separates, because URL-safe text may contain one.
    """
    encoded, separator, signature = signed.rpartition(_SEPARATOR)
    # The signature is checked first, so that only text of a trusted signer is decoded.
    if not secret or not separator or not matches(signature, _digest(secret, encoded)):
        return None
    return unverified_name(signed)


def unverified_name(signed: str) -> str | None:
    """The name in a signed one, without a check of the signature. For display and lookup only."""
    standard = signed.rpartition(_SEPARATOR)[0].translate(_TO_STANDARD).rstrip("=")
    try:
        text = base64.b64decode(standard + "=" * (-len(standard) % 4), validate=True).decode()
        name = None if is_too_deep(text) else json.loads(text)
    except ValueError:
        return None
    # JSON may escape half a surrogate pair: such a name cannot be sent to clients.
    return name if isinstance(name, str) and _HALF_PAIR.search(name) is None else None


def matches(given: str, expected: str) -> bool:
    """True if a bearer key is the expected one. Always False if the expected one is empty."""
    return bool(expected) and hmac.compare_digest(_octets(given), _octets(expected))


def _digest(secret: str, text: str) -> str:
    if not secret:
        raise ValueError("an empty secret signs nothing")
    # In a secret from the environment, bytes that are not UTF-8 are escaped; this restores them.
    key = secret.encode("utf-8", "surrogateescape")
    return hmac.new(key, _octets(text), hashlib.sha256).hexdigest()


def _octets(text: str) -> bytes:
    """The bytes of any str: text of a client may not be valid UTF-8, and must compare unequal, not raise."""
    return text.encode("utf-8", "surrogatepass")
