"""New session ids: 128 random bits each, which nobody can guess, in 22 characters."""

import secrets
from base64 import urlsafe_b64encode

SID_BYTES = 16
AT_ONCE = 64
"""Made together: to ask the system for random bytes costs about as much for many as for one."""


class Sids:
    def __init__(self) -> None:
        self._made: list[str] = []

    def new(self) -> str:
        if not self._made:
            chance = secrets.token_bytes(SID_BYTES * AT_ONCE)
            self._made = [_sid(chance[start : start + SID_BYTES]) for start in range(0, len(chance), SID_BYTES)]
        return self._made.pop()


def _sid(chance: bytes) -> str:
    return urlsafe_b64encode(chance).rstrip(b"=").decode()
