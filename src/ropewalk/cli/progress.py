"""How far long work has come: on a terminal a line that changes, elsewhere a line now and then. Short work says nothing."""

import sys
import time
from collections.abc import Callable
from contextlib import suppress

TELL_SECONDS = 30.0


class ProgressLine:
    """Call it with what is done and what there is to do. `words` makes the line of the two."""

    def __init__(self, words: Callable[[int, int], str]) -> None:
        self._words = words
        self._terminal = sys.stderr.isatty()
        self._every = 0.5 if self._terminal else TELL_SECONDS
        self._told = time.monotonic()
        self._shown = False

    def __call__(self, done: int, total: int) -> None:
        if time.monotonic() - self._told < self._every:
            return
        self._told = time.monotonic()
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
        with suppress(OSError):  # the work goes on whether anybody can see how far it is
            print(text, end="", file=sys.stderr, flush=True)
