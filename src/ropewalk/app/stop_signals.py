"""Which of the signals that end a server means now.

The first one begins an orderly end, a second one ends the process at once. One signal may come twice, though: to the whole
process group from a terminal, or to the whole service from systemd, and once more from a parent that passes on what it got,
as the loader of the one file does.
"""

ECHO_SECONDS = 0.5
"""A signal within so long after the first is the same one. People take longer to lose patience."""


class StopSignals:
    def __init__(self) -> None:
        self._first: float | None = None

    def means_now(self, now: float) -> bool:
        """Of a signal that has just come, by a clock that only goes forward."""
        if self._first is None:
            self._first = now
            return False
        return now - self._first > ECHO_SECONDS
