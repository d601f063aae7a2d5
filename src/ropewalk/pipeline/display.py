"""The display of a run: lines updated in place on a terminal, elsewhere a log line per change."""

import sys
from collections.abc import Sequence
from typing import TextIO

from ropewalk.pipeline.progress import QueryProgress
from ropewalk.pipeline.supervision import Monotonic

PLAIN_SECONDS = 10.0
SHOWN_SHARDS = 4


class JobLine:
    """The displayed state of one job."""

    def __init__(
        self, job: str, condition: str, progress: QueryProgress, restarts: int, error: str, silent: float = 0.0
    ) -> None:
        self.job = job
        self.condition = condition
        self.progress = progress
        self.restarts = restarts
        self.error = error
        self.silent = silent

    def text(self, width: int = 0) -> str:
        """`width`: of the column of names."""
        parts = [f"{self.job:<{width}}", f"{self.condition:<8}"]
        if self.progress.batches:
            parts.append(figures(self.progress))
        if self.silent:
            parts.append(silence(self.silent))
        if self.restarts:
            parts.append(f"restarts {self.restarts}")
        if self.error:
            parts.append(self.error)
        return "  ".join(parts)


def silence(seconds: float) -> str:
    return f"no report for {seconds:.0f} s"


def figures(progress: QueryProgress) -> str:
    if not progress.batches:
        return "no batch yet"
    late = f"  late {progress.late:,}" if progress.late else ""
    return (
        f"{progress.rows:>11,} rows {progress.rate:>9,.0f}/s  {progress.batches:>5} batches {progress.seconds:>6.2f} s  "
        f"lag {lag_text(progress.lag)}{late}"
    )


def lag_text(lag: dict[int, int]) -> str:
    """The sum, and the shards that are furthest behind."""
    behind = sorted(((rows, shard) for shard, rows in lag.items() if rows), reverse=True)
    shown = " ".join(f"{shard}:{rows:,}" for rows, shard in behind[:SHOWN_SHARDS])
    more = " …" if len(behind) > SHOWN_SHARDS else ""
    return f"{sum(lag.values()):,}" + (f" ({shown}{more})" if shown else "")


class Display:
    """Writes to `out`, which by default is standard error: standard output is for the messages of jobs."""

    def __init__(self, clock: Monotonic, out: TextIO | None = None) -> None:
        self._out = out or sys.stderr
        self._clock = clock
        self._drawn = 0
        self._next = 0.0
        self._written: dict[str, JobLine] = {}

    def show(self, lines: Sequence[JobLine], last: bool = False) -> None:
        if self._out.isatty():
            self._draw(lines)
            return
        due = last or self._clock() >= self._next
        if due:
            self._next = self._clock() + PLAIN_SECONDS
        news = [line for line in lines if self._is_news(line, due)]
        self._written |= {line.job: line for line in news}
        self._write("".join(f"{line.text(_width(lines))}\n" for line in news))

    def print_line(self, text: str) -> None:
        """Print a message of a job above the changing lines."""
        self._make_room()
        print(text, flush=True)

    def remark(self, text: str) -> None:
        """Print a message of the run itself above the changing lines."""
        self._make_room()
        self._write(f"{text}\n")

    def _make_room(self) -> None:
        if self._drawn and self._out.isatty():
            self._write(f"\x1b[{self._drawn}A\x1b[J")
            self._drawn = 0

    def _is_news(self, line: JobLine, due: bool) -> bool:
        """A changed condition is shown at once, changed figures periodically."""
        known = self._written.get(line.job)
        return known is None or known.condition != line.condition or (due and known.text() != line.text())

    def _draw(self, lines: Sequence[JobLine]) -> None:
        back = f"\x1b[{self._drawn}A" if self._drawn else ""
        self._write(back + "".join(f"\x1b[2K{line.text(_width(lines))}\n" for line in lines))
        self._drawn = len(lines)

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()


def _width(lines: Sequence[JobLine]) -> int:
    return max((len(line.job) for line in lines), default=0)
