"""When a replay publishes what: in pieces of bounded size, each row not before its time. Clock and waiting are passed in."""

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TextIO, TypeVar

T = TypeVar("T")

CHUNK_ROWS = 1000
BAR_WIDTH = 30
BAR_SECONDS = 0.2
PLAIN_SECONDS = 10.0


class Pace:
    """`speed` 2 halves the time between rows, 0 takes none. The first row is due at once."""

    def __init__(self, speed: float, clock: Callable[[], float], wait: Callable[[float], object]) -> None:
        self._speed = speed
        self._clock = clock
        self._wait = wait
        self._began: tuple[float, float] | None = None

    def delay(self, timestamp: float) -> float:
        """Seconds until a row of this time is due, 0 if it is."""
        if self._began is None:
            self._began = (self._clock(), timestamp)
        if not self._speed:
            return 0.0
        start, first = self._began
        return max(0.0, start + (timestamp - first) / self._speed - self._clock())

    def wait(self, seconds: float) -> None:
        self._wait(seconds)


def chunks(rows: Iterable[T], pace: Pace, timestamp: Callable[[T], float], most: int = CHUNK_ROWS) -> Iterator[list[T]]:
    """Rows that are due together. Before one that is not, what is due is given out, then it is waited for."""
    due: list[T] = []
    for row in rows:
        at = timestamp(row)
        if due and (len(due) >= most or pace.delay(at)):
            yield due
            due = []
        if delay := pace.delay(at):  # asked again, for publishing takes its time
            pace.wait(delay)
        due.append(row)
    if due:
        yield due


class Bar:
    """How far it is. On a terminal a bar that fills, elsewhere a line now and then."""

    def __init__(self, total: int, clock: Callable[[], float], out: TextIO | None = None) -> None:
        self._total = total
        self._clock = clock
        self._out = out or sys.stderr
        self._began = clock()
        self._next = 0.0

    def show(self, done: int) -> None:
        now = self._clock()
        if now < self._next and done < self._total:
            return
        self._next = now + (BAR_SECONDS if self._out.isatty() else PLAIN_SECONDS)
        self._write(done, done / max(now - self._began, 1e-9))

    def end(self) -> None:
        if self._out.isatty():
            self._out.write("\n")

    def _write(self, done: int, rate: float) -> None:
        filled = BAR_WIDTH * done // self._total
        bar = "█" * filled + "·" * (BAR_WIDTH - filled)
        text = f"{bar} {100 * done // self._total:>3} %  {done:,} of {self._total:,} rows  {rate:,.0f}/s"
        self._out.write(f"\r\x1b[2K{text}" if self._out.isatty() else f"{text}\n")
        self._out.flush()
