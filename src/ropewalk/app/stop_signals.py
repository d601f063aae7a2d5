"""Distinguishes the first signal that ends a server from the second.

The first begins an orderly shutdown, the second ends the process at once. One signal may arrive twice, though: a terminal or
systemd signals all processes, and a parent, such as the loader of the standalone binary, forwards the signal it received.
"""

ECHO_SECONDS = 0.5
"""A signal within this time after the first is a copy of it. A person takes longer to repeat it."""


class StopSignals:
    def __init__(self) -> None:
        self._first: float | None = None

    def means_now(self, now: float) -> bool:
        """Whether the signal just received is the second. `now`: monotonic time."""
        if self._first is None:
            self._first = now
            return False
        return now - self._first > ECHO_SECONDS
