"""What a broadcaster does with one payload: the parser and the limits are those of publishing over HTTP.

Nobody waits for an answer here. So a payload that cannot be used is logged and counted, and then it is done with.
"""

import logging
import time

from ropewalk.core.stats import Stats
from ropewalk.model.errors import ClientError, MalformedPublication
from ropewalk.model.messages import Publication, RemoteDisconnect
from ropewalk.protocol.publications import PublicationLimits, decode_gently

logger = logging.getLogger("ropewalk.broadcast")

BETWEEN_WARNINGS = 10.0
"""Seconds. A publisher that sends nothing else than nonsense must not fill the disk with lines about it."""


class Intake:
    """Payloads of one broadcaster, to what they say."""

    def __init__(self, broadcaster: str, limits: PublicationLimits, stats: Stats) -> None:
        self._broadcaster = broadcaster
        self._limits = limits
        self._stats = stats
        self._next_warning = 0.0

    async def read(self, payload: bytes | None, key: str = "") -> list[Publication] | RemoteDisconnect | None:
        """None for one that cannot be used. `key` gives a uid to publications that bring none of their own."""
        try:
            if payload is None:
                raise MalformedPublication("there is no payload")
            if len(payload) > self._limits.max_publish_size:
                raise MalformedPublication(f"the payload is larger than {self._limits.max_publish_size} bytes")
            return await decode_gently(payload, self._limits, key)
        except MalformedPublication as error:
            self.refuse(error, key)
            return None

    def refuse(self, error: ClientError, key: str) -> None:
        """Log and count a payload that can never be registered."""
        self._stats.publications_refused += 1
        if error.refusal is not None:
            self._stats.refusals[error.refusal] += 1
        now = time.monotonic()
        level = logging.WARNING if now >= self._next_warning else logging.DEBUG
        if level == logging.WARNING:
            self._next_warning = now + BETWEEN_WARNINGS
        logger.log(
            level,
            "a broadcast is dropped, for it cannot be used",
            extra={"broadcaster": self._broadcaster, "entry": key, "reason": str(error)},
        )
