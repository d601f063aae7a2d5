"""Keys of bytes, and the names that they have as streams. Both ways are exact: no two keys have one name.

A key that is UTF-8 text is its own name. Every other key, and text that begins with the mark, is the mark and base64url.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from functools import lru_cache

MARK = "~b64:"


def name_of(key: bytes) -> str:
    """The stream's name."""
    try:
        name = key.decode()
    except UnicodeDecodeError:
        return _marked(key)
    return _marked(key) if name.startswith(MARK) else name


def key_of(name: str) -> bytes:
    """The key whose name it is. Raises ValueError if no key has it: it begins with the mark, or cannot be encoded."""
    if not name.startswith(MARK):
        return name.encode()
    encoded = name[len(MARK) :]
    key = urlsafe_b64decode(encoded.encode() + b"=" * (-len(encoded) % 4))
    if name_of(key) != name:
        raise ValueError(f"no key has the name {name[:80]!r}")
    return key


@lru_cache(maxsize=1024)
def shown_key(name: str) -> bytes:
    """The key that stands for a stream. An application may sign a name that no key has: it is shown as it is."""
    try:
        return key_of(name)
    except ValueError:
        return name.encode("utf-8", "replace")


def is_name(name: str) -> bool:
    """Whether some key has it. One that begins with the mark may be another spelling of one that has."""
    try:
        key_of(name)
    except ValueError:
        return False
    return True


def _marked(key: bytes) -> str:
    return MARK + urlsafe_b64encode(key).rstrip(b"=").decode()
