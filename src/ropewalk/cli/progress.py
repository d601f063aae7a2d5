"""How far long work has come: on a terminal a line that changes, elsewhere a line now and then. Short work says nothing."""

import sys
import time
from collections.abc import Callable

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
        print(f"\r{text}\033[K" if self._terminal else text, end="" if self._terminal else "\n", file=sys.stderr, flush=True)

    def __enter__(self) -> "ProgressLine":
        return self

    def __exit__(self, *_: object) -> None:
        if self._terminal and self._shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
