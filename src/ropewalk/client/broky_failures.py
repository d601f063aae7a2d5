"""What becomes of pushes that failed: they are tried again after a pause, or whoever pushed them is told."""

import asyncio
from collections.abc import Callable

from ropewalk.client.broky_options import BrokyOptions
from ropewalk.client.broky_pushes import PushWindow
from ropewalk.client.broky_state import refusal
from ropewalk.client.broky_waiters import BrokyWaiters
from ropewalk.client.errors import (
    CableError,
    CertificateUntrusted,
    Disconnected,
    PublishError,
    PublishUnanswered,
    TlsFailed,
    Unreachable,
)
from ropewalk.protocol.broky.frames import Error


class PushFailures:
    """`last_error`: what the server said at the end of the present or the last connection."""

    def __init__(self, url: str, pushes: PushWindow, waiters: BrokyWaiters, options: BrokyOptions) -> None:
        self.last_error = Error()
        self._url = url
        self._pushes = pushes
        self._waiters = waiters
        self._options = options

    def retry(self, ref: int, failures: int, error: CableError, again: Callable[[], None]) -> None:
        """The server could not register it, for the so many-th time."""
        if failures >= self._options.attempts:
            self._pushes.forget(ref)
            self._waiters.refused(ref, error)
            return
        pause = self._options.backoff.delay(failures - 1, self._options.chance)
        asyncio.get_running_loop().call_later(pause, again)

    def attempt_failed(self, error: CableError, attempt: int) -> None:
        """To reach the server, after `attempt` others, for whatever waits to be pushed."""
        final = isinstance(error, CertificateUntrusted | TlsFailed)
        attempts = 1 if final else self._options.attempts
        told = self.as_told(error)
        for ref in self._pushes.failed(attempts):
            self._waiters.refused(ref, told)
        if attempt + 1 >= attempts:
            self._waiters.fail_senders(told)

    def as_told(self, error: Exception) -> Exception:
        """As a producer is told it."""
        match error:
            case Disconnected():
                return refusal(self.last_error.reason, self.last_error.text or error.reason)
            case Unreachable() if not isinstance(error, PublishError):
                return PublishUnanswered(f"{self._url} gave no answer: {error}")
        return error
