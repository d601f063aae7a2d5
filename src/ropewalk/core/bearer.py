"""Checks the bearer key of HTTP requests. The constant-time comparison itself is in `signatures`."""

import logging
from collections import Counter

from ropewalk.core.signatures import matches
from ropewalk.model.refusals import Refusal

logger = logging.getLogger("ropewalk.http")


class KeyGuard:
    """Checks the bearer key of requests and counts what its endpoints refuse. An empty key lets everyone in (public mode).

    `refusals` is the node's count by reason; the key can be replaced while the server runs.
    """

    def __init__(self, key: str, refusals: Counter[str]) -> None:
        self.key = key
        self.refusals = refusals

    def admits(self, authorization: str) -> bool:
        if not self.key:
            return True
        scheme, _, given = authorization.partition(" ")
        if scheme.lower() == "bearer" and matches(given.strip(), self.key):
            return True
        self.refused(Refusal.BAD_KEY)
        return False

    def refused(self, why: Refusal) -> None:
        self.refusals[why] += 1
        logger.debug("request refused", extra={"reason": why.value})
