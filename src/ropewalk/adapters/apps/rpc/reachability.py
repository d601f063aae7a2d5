"""Whether the application can be reached, judged by recent calls. A change is logged once."""

import logging

from ropewalk.ports import Clock

log = logging.getLogger("ropewalk.application")

MISSES = 3
"""Unanswered calls in a row before the application counts as unhealthy."""

FADES = 30.0
"""Seconds after which a miss says nothing any more. A server that is taken out of service because it is unhealthy would
never get the call that proves it well."""


class Reachability:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._misses = 0
        self._missed_at = 0.0

    def answered(self) -> None:
        """Any answer counts, an error too."""
        if self._misses >= MISSES:
            log.info("the application answers again")
        self._misses = 0

    def missed(self, why: str) -> None:
        self._misses += 1
        self._missed_at = self._clock()
        if self._misses == MISSES:
            log.warning("the application does not answer", extra={"why": why})

    def health(self) -> str:
        if self._misses < MISSES or self._clock() - self._missed_at > FADES:
            return ""
        return "the application does not answer"  # why is for the log: the health page is for everybody
