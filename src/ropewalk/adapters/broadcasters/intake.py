"""Parses the payloads of a broadcaster, with the parser and the limits of publishing over HTTP.

Senders get no reply. An invalid payload is logged, counted and dropped.
"""

import logging
import time

from ropewalk.core.stats import Stats
from ropewalk.model.errors import ClientError, MalformedPublication
from ropewalk.model.messages import Publication, RemoteDisconnect
from ropewalk.protocol.publications import PublicationLimits, decode_gently

logger = logging.getLogger("ropewalk.broadcast")

WARNING_INTERVAL_SECONDS = 10.0
"""A publisher that sends invalid payloads only must not fill the log."""


class Intake:
    """Decodes the payloads of one broadcaster."""

    def __init__(self, broadcaster: str, limits: PublicationLimits, stats: Stats) -> None:
        self._broadcaster = broadcaster
        self._limits = limits
        self._stats = stats
        self._next_warning = 0.0

    async def read(self, payload: bytes | None, key: str = "") -> list[Publication] | RemoteDisconnect | None:
        """Returns None for an invalid payload. `key` is the base of uids for publications without one."""
        try:
            if payload is None:
                raise MalformedPublication("the payload is missing")
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
            self._next_warning = now + WARNING_INTERVAL_SECONDS
        logger.log(
            level,
            "invalid broadcast dropped",
            extra={"broadcaster": self._broadcaster, "entry": key, "reason": str(error)},
        )
