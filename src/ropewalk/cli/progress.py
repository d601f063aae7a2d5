"""Progress of long work: on a terminal a line that is updated, elsewhere a line at intervals. Short work prints nothing."""

import sys
import time
from collections.abc import Callable
from contextlib import suppress

LINE_SECONDS = 30.0


class ProgressLine:
    """Call it with the work done and the total. `words` makes the line."""

    def __init__(self, words: Callable[[int, int], str]) -> None:
        self._words = words
        self._terminal = sys.stderr.isatty()
        self._every = 0.5 if self._terminal else LINE_SECONDS
        self._printed_at = time.monotonic()
        self._shown = False

    def __call__(self, done: int, total: int) -> None:
        if time.monotonic() - self._printed_at < self._every:
            return
        self._printed_at = time.monotonic()
        self._shown = True
        text = self._words(done, total)
        self._print(f"\r{text}\033[K" if self._terminal else f"{text}\n")

    def __enter__(self) -> "ProgressLine":
        return self

    def __exit__(self, *_: object) -> None:
        if self._terminal and self._shown:
            self._print("\r\033[K")

    @staticmethod
    def _print(text: str) -> None:
        with suppress(OSError):  # the work continues without its progress line
            print(text, end="", file=sys.stderr, flush=True)
