"""A circuit breaker: when nearly all calls fail, it stops calling for a while and then lets a few calls through. Time is passed
in.

A call remembers the number of the breaker's state at its start. Results of calls from an earlier state are ignored.
"""

from collections import deque
from enum import Enum, auto

from ropewalk.ports import Clock


class _State(Enum):
    CLOSED = auto()
    OPEN = auto()
    TRYING = auto()


class Breaker:
    """Opens for `pause` seconds when of at least `least` requests within `window` seconds `percent` or more have failed.

    Then `trials` requests are let through: one failure opens it again, their success closes it.
    """

    def __init__(
        self, clock: Clock, *, window: int = 10, least: int = 10, percent: int = 80, pause: float = 5.0, trials: int = 5
    ) -> None:
        self._clock = clock
        self._recent = _Recent(window)
        self._least = least
        self._percent = percent
        self._pause = pause
        self._trials = trials
        self._state = _State.CLOSED
        self._life = 0
        self._opened_at = 0.0
        self._let_through = 0
        self._succeeded = 0

    @property
    def open(self) -> bool:
        """True until it is proven that requests get through again."""
        return self._state is not _State.CLOSED

    def enter(self) -> int | None:
        """A ticket to hand back to `leave`, or None: do not ask."""
        if self._state is _State.OPEN and self._clock() >= self._opened_at + self._pause:
            self._become(_State.TRYING)
        if self._state is _State.OPEN or (self._state is _State.TRYING and self._let_through >= self._trials):
            return None
        self._let_through += 1
        return self._life

    def leave(self, ticket: int, ok: bool | None) -> None:
        """How it went; None where nobody waited for the end of it."""
        if ticket != self._life:
            return
        match ok:
            case None:
                self._let_through -= 1
            case True:
                self._success()
            case False:
                self._failure()

    def _success(self) -> None:
        self._succeeded += 1
        if self._state is _State.CLOSED:
            self._recent.add(int(self._clock()), failed=False)
        elif self._succeeded >= self._trials:
            self._become(_State.CLOSED)

    def _failure(self) -> None:
        if self._state is _State.CLOSED:
            self._recent.add(int(self._clock()), failed=True)
            requests, failures = self._recent.counts()
            if requests < self._least or 100 * failures < self._percent * requests:
                return
        self._opened_at = self._clock()
        self._become(_State.OPEN)

    def _become(self, state: _State) -> None:
        self._state = state
        self._life += 1
        self._let_through = self._succeeded = 0
        self._recent.clear()


class _Recent:
    """Requests and failures of the last seconds, this one included, summed up by second: memory does not grow with traffic."""

    def __init__(self, seconds: int) -> None:
        self._seconds = seconds
        self._sums: deque[tuple[int, int, int]] = deque()

    def add(self, second: int, failed: bool) -> None:
        while self._sums and self._sums[0][0] <= second - self._seconds:
            self._sums.popleft()
        requests, failures = 0, 0
        if self._sums and self._sums[-1][0] == second:
            _, requests, failures = self._sums.pop()
        self._sums.append((second, requests + 1, failures + failed))

    def counts(self) -> tuple[int, int]:
        return sum(requests for _, requests, _ in self._sums), sum(failures for _, _, failures in self._sums)

    def clear(self) -> None:
        self._sums.clear()
