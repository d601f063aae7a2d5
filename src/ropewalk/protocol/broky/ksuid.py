"""KSUIDs: four bytes of time, sixteen of chance. As text 27 characters of base62, which sort as the bytes do."""

import secrets
from collections.abc import Callable

KSUID_BYTES = 20
TEXT_LENGTH = 27

_BEGIN = 1_400_000_000  # seconds since 1970 at which their time begins
_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_VALUES = {digit: value for value, digit in enumerate(_DIGITS)}


def new_ksuid(now: float, chance: Callable[[int], bytes] = secrets.token_bytes) -> bytes:
    return ((int(now) - _BEGIN) % 2**32).to_bytes(4) + chance(16)


def ksuid_text(ksuid: bytes) -> str:
    number = int.from_bytes(ksuid)
    digits = []
    for _ in range(TEXT_LENGTH):
        number, digit = divmod(number, 62)
        digits.append(_DIGITS[digit])
    return "".join(reversed(digits))


def ksuid_of(text: str) -> bytes:
    """Raises ValueError for what is no KSUID."""
    if len(text) != TEXT_LENGTH:
        raise ValueError(f"a KSUID has {TEXT_LENGTH} characters")
    number = 0
    for digit in text:
        if digit not in _VALUES:
            raise ValueError("a KSUID has digits and letters only")
        number = number * 62 + _VALUES[digit]
    try:
        return number.to_bytes(KSUID_BYTES)
    except OverflowError:
        raise ValueError("too large for a KSUID") from None
