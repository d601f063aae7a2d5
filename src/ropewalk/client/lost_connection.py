"""What a session logs of connections that it lost or could not make: each reason once, until a server has welcomed it again.

What only people can mend is a warning with the reason in its text: Python prints that also where no logging is set up.
"""

import logging

from ropewalk.client.errors import CertificateUntrusted, TlsFailed, Unreachable

logger = logging.getLogger("ropewalk.client")

MOST_REASONS = 16
"""That are remembered: a server may find ever new words."""


class LostConnection:
    """`told`: whoever asked for a connection hears why there is none, so that a warning would only repeat it."""

    def __init__(self, told: bool = False) -> None:
        self._told = told
        self._logged: set[str] = set()

    def log(self, error: Unreachable) -> None:
        reason = str(error)
        if reason in self._logged:
            return
        if len(self._logged) == MOST_REASONS:
            self._logged.clear()
        self._logged.add(reason)
        if isinstance(error, CertificateUntrusted | TlsFailed) and not self._told:
            logger.warning("not connected, and trying again: %s", reason)
        else:
            logger.info("connection lost", extra={"reason": reason})

    def welcomed(self) -> None:
        self._logged.clear()
