"""KSUIDs: four bytes of time, sixteen random bytes. As text 27 characters of base62, which sort like the bytes."""

import secrets
from collections.abc import Callable

from ropewalk.model.messages import KSUID_LENGTH, LAST_KSUID

KSUID_BYTES = 20

_BEGIN = 1_400_000_000  # their time zero, in seconds since 1970
_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_VALUES = bytes(max(0, _DIGITS.find(chr(code))) for code in range(256))
_PAIRS = [first + second for first in _DIGITS for second in _DIGITS]  # two digits at a time halve the divisions


def new_ksuid(now: float, chance: Callable[[int], bytes] = secrets.token_bytes) -> bytes:
    return ((int(now) - _BEGIN) % 2**32).to_bytes(4) + chance(16)


def ksuid_text(ksuid: bytes) -> str:
    number = int.from_bytes(ksuid)
    digits = []
    for _ in range(KSUID_LENGTH // 2):
        number, pair = divmod(number, 62 * 62)
        digits.append(_PAIRS[pair])
    digits.append(_DIGITS[number])
    return "".join(reversed(digits))


def parse_ksuid(text: str) -> bytes:
    """Raises ValueError for an invalid KSUID."""
    if len(text) != KSUID_LENGTH:
        raise ValueError(f"a KSUID has {KSUID_LENGTH} characters")
    if not (text.isascii() and text.isalnum()):
        raise ValueError("a KSUID has digits and letters only")
    if text > LAST_KSUID:
        raise ValueError("too large for a KSUID")
    number = 0
    for digit in text.encode().translate(_VALUES):
        number = number * 62 + digit
    return number.to_bytes(KSUID_BYTES)
