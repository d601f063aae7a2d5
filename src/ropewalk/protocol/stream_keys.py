"""Maps keys of Broky, which are bytes, to names of streams and back. No two keys have the same name.

The name of a UTF-8 key is its text. For any other key, and for text that begins with the mark, it is the mark and base64url.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from functools import lru_cache

MARK = "~b64:"


def decode_key(key: bytes) -> str:
    """The name of the stream of this key."""
    try:
        name = key.decode()
    except UnicodeDecodeError:
        return _marked(key)
    return _marked(key) if name.startswith(MARK) else name


def encode_key(name: str) -> bytes:
    """The key of this name. Raises ValueError if no key has it: it begins with the mark, or cannot be encoded."""
    if not name.startswith(MARK):
        return name.encode()
    encoded = name[len(MARK) :]
    key = urlsafe_b64decode(encoded.encode() + b"=" * (-len(encoded) % 4))
    if decode_key(key) != name:
        raise ValueError(f"no key has the name {name[:80]!r}")
    return key


@lru_cache(maxsize=1024)
def shown_key(name: str) -> bytes:
    """The key of a stream, in deliveries. A name without a key, which an application may sign, is encoded as it is."""
    try:
        return encode_key(name)
    except ValueError:
        return name.encode("utf-8", "replace")


def is_name(name: str) -> bool:
    """Whether a key has this name. A name with the mark may be another spelling of a valid one."""
    try:
        encode_key(name)
    except ValueError:
        return False
    return True


def _marked(key: bytes) -> str:
    return MARK + urlsafe_b64encode(key).rstrip(b"=").decode()
