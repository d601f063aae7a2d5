"""Derived bearer keys and signed stream names, all made from one secret.

An empty secret signs nothing, verifies nothing and matches nothing. Every comparison takes constant time.
"""

import base64
import hashlib
import hmac
import json
import re

from ropewalk.model.nesting import too_deep

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
    """The key that publishers, API callers or the RPC application prove themselves with. Raises ValueError without a secret."""
    return _digest(secret, phrase)


def sign_stream(name: str, secret: str) -> str:
    """The signed form of a stream's name, to be handed to a client. Raises ValueError without a secret."""
    text = json.dumps(name, ensure_ascii=False).encode()
    encoded = base64.b64encode(text).decode()
    return encoded + _SEPARATOR + _digest(secret, encoded)


def verify_stream(signed: str, secret: str) -> str | None:
    """The stream's name, or None when the secret is empty or did not sign this.

    Signers differ: some write the standard base64 alphabet, some the URL-safe one, with or without padding. The signature
    covers the text as it was written. Only the last `--` separates, because URL-safe text may hold one itself.
    """
    encoded, separator, signature = signed.rpartition(_SEPARATOR)
    # The signature is checked before anything is decoded: what follows runs on text that a holder of the secret wrote.
    if not secret or not separator or not matches(signature, _digest(secret, encoded)):
        return None
    return unverified_name(signed)


def unverified_name(signed: str) -> str | None:
    """The name that a signed one speaks of, whoever signed it. For those who only want to show or to look it up."""
    standard = signed.rpartition(_SEPARATOR)[0].translate(_TO_STANDARD).rstrip("=")
    try:
        text = base64.b64decode(standard + "=" * (-len(standard) % 4), validate=True).decode()
        name = None if too_deep(text) else json.loads(text)
    except ValueError:
        return None
    # JSON may escape half a surrogate pair: such a name could never be sent to anybody.
    return name if isinstance(name, str) and _HALF_PAIR.search(name) is None else None


def matches(given: str, expected: str) -> bool:
    """Whether a bearer key is the expected one. Never true when nothing is expected."""
    return bool(expected) and hmac.compare_digest(_octets(given), _octets(expected))


def _digest(secret: str, text: str) -> str:
    if not secret:
        raise ValueError("an empty secret signs nothing")
    # A secret that is not UTF-8 comes from the environment with its odd bytes escaped; this brings them back.
    key = secret.encode("utf-8", "surrogateescape")
    return hmac.new(key, _octets(text), hashlib.sha256).hexdigest()


def _octets(text: str) -> bytes:
    """Bytes of any str at all: what a stranger sent may hold what UTF-8 does not allow, and must compare unequal, not raise."""
    return text.encode("utf-8", "surrogatepass")
