"""Supervises a job: restarts failed attempts. Clock and randomness are parameters, nothing here waits.

A failed attempt is followed by another one, later and later, and after too many in a row without a batch by none.
"""

import re
from collections.abc import Callable
from enum import StrEnum
from typing import Protocol

from msgspec import Struct

from ropewalk.core.backoff import Backoff, Chance
from ropewalk.model.errors import UserMistake
from ropewalk.pipeline.progress import QueryProgress

Monotonic = Callable[[], float]
"""Seconds that never go back, like `time.monotonic`."""

MISTAKEN = 2
"""The exit code for what only a person can put right, such as an option's value."""

INTERRUPTED = 130
"""The exit code of a run that Ctrl-C has ended, as shells have it."""

_TRACEBACK = "Traceback (most recent call last):"
_RAISED = re.compile(r"(?:\w+\.)*[A-Z]\w*(?::|$)")
_INCURABLE = ("UserMistake:", "DataLoss:", "ModuleNotFoundError:", "ImportError:")


class Condition(StrEnum):
    WAITING = "waiting"  # for its first attempt, or the next one
    RUNNING = "running"
    DONE = "done"
    STOPPED = "stopped"
    FAILED = "failed"


ENDED = (Condition.DONE, Condition.STOPPED, Condition.FAILED)

RESTARTS = 5
"""Default number of consecutive failures after which a job is given up."""


class Attempt(Protocol):
    """One start of a job: a query, or a call in a thread."""

    def finished(self) -> bool: ...
    def failure(self) -> BaseException | None:
        """Why it ended, None for well. Asked only once it has finished."""

    def code(self) -> int:
        """The exit code of one that ended well."""

    def stop(self) -> None: ...
    def progress(self) -> QueryProgress: ...


class Policy(Struct, frozen=True):
    """`restarts` failures in a row are followed by another attempt. `every`: seconds from one good end to the next start.
    `report_every`: seconds within which the next report of a running attempt is due; None where there are none."""

    restarts: int = RESTARTS
    backoff: Backoff = Backoff(1.0, 60.0)
    every: float | None = None
    report_every: float | None = None


class Unit:
    """One job under supervision. `tick` is called often and moves it on."""

    def __init__(self, name: str, start: Callable[[], Attempt], policy: Policy, clock: Monotonic, chance: Chance) -> None:
        self.name = name
        self.condition = Condition.WAITING
        self.error = ""
        self.exit_code = 0
        self.exhausted = False  # given up after too many failures; a new process may succeed
        self.restarts = 0
        self.progress = QueryProgress()
        self._start = start
        self._policy = policy
        self._clock = clock
        self._chance = chance
        self._due = self._heard = clock()
        self._in_a_row = 0
        self._attempt: Attempt | None = None

    @property
    def ended(self) -> bool:
        return self.condition in ENDED

    @property
    def silent(self) -> float:
        """Seconds without a report, once it is overdue: a long batch, or a Spark that gets no time from the machine."""
        passed = self._clock() - self._heard
        overdue = self._policy.report_every is not None and passed > self._policy.report_every
        return passed if self.condition is Condition.RUNNING and overdue else 0.0

    def tick(self) -> None:
        if self.condition is Condition.WAITING and self._clock() >= self._due:
            self._begin()
        elif self.condition is Condition.RUNNING and self._attempt is not None:
            self._look(self._attempt)

    def stop(self) -> None:
        """In order: a query ends between two batches or gives its batch up, and begins there the next time."""
        if self._attempt is not None and self.condition is Condition.RUNNING:
            self._attempt.stop()
            self.progress = self._attempt.progress()
        if not self.ended:
            self.condition = Condition.STOPPED

    def _begin(self) -> None:
        try:
            self._attempt = self._start()
        except Exception as error:
            self._failed(error)
        else:
            self.condition, self._heard = Condition.RUNNING, self._clock()

    def _look(self, attempt: Attempt) -> None:
        # In this order, so that a report between the two calls is not lost.
        finished = attempt.finished()
        before, self.progress = self.progress, attempt.progress()
        if self.progress.reports > before.reports:
            self._heard = self._clock()
        if self.progress.batches > before.batches:
            self._in_a_row, self.error = 0, ""
        if not finished:
            return
        failure = attempt.failure()
        if failure is None:
            self._well(attempt.code())
        else:
            self._failed(failure)

    def _well(self, code: int) -> None:
        self.exit_code, self._in_a_row, self.error = code, 0, ""
        if self._policy.every is None:
            self.condition = Condition.DONE
        else:
            self.condition, self._due = Condition.WAITING, self._clock() + self._policy.every

    def _failed(self, error: BaseException) -> None:
        self.exhausted = self._in_a_row >= self._policy.restarts and not incurable(error)
        if self.exhausted or incurable(error):
            self._give_up(error)
            return
        self.error = error_summary(error)
        self.condition = Condition.WAITING
        self._due = self._clock() + self._policy.backoff.delay(self._in_a_row, self._chance)
        self._in_a_row += 1
        self.restarts += 1

    def _give_up(self, error: BaseException) -> None:
        self.condition, self.error = Condition.FAILED, error_summary(error)
        self.exit_code = MISTAKEN if isinstance(error, UserMistake) or "UserMistake:" in self.error else 1


def error_summary(error: BaseException) -> str:
    """The line with the cause. Spark wraps errors of Python code into its own message."""
    lines = str(error).splitlines()
    starts = [number for number, line in enumerate(lines) if _TRACEBACK in line]
    raised = next((line for line in lines[starts[-1] + 1 :] if _RAISED.match(line)), "") if starts else ""
    return raised or next((line.strip() for line in lines if line.strip()), type(error).__name__)


def incurable(error: BaseException) -> bool:
    """Another attempt would find the same."""
    return isinstance(error, UserMistake | ImportError) or any(name in error_summary(error) for name in _INCURABLE)
