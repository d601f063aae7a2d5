"""A circuit breaker: opens when nearly all calls fail, and lets a few trial calls through after a pause. Time is passed in.

Each state has a number, which a call keeps as its ticket. Results with the ticket of an earlier state are ignored.
"""

from collections import deque
from enum import Enum, auto

from ropewalk.ports import Clock


class _State(Enum):
    CLOSED = auto()
    OPEN = auto()
    HALF_OPEN = auto()


class Breaker:
    """Opens when too many requests fail.

    Args:
        window: seconds over which requests are counted.
        min_requests: within the window, below which it never opens.
        percent: of failed requests at which it opens.
        pause: seconds for which it stays open.
        trials: requests that are let through after the pause. One failure opens it again, their success closes it.
    """

    def __init__(
        self, clock: Clock, *, window: int = 10, min_requests: int = 10, percent: int = 80, pause: float = 5.0, trials: int = 5
    ) -> None:
        self._clock = clock
        self._recent = _Recent(window)
        self._min_requests = min_requests
        self._percent = percent
        self._pause = pause
        self._trials = trials
        self._state = _State.CLOSED
        self._ticket = 0
        self._opened_at = 0.0
        self._admitted = 0
        self._succeeded = 0

    @property
    def open(self) -> bool:
        """True until the trials have succeeded."""
        return self._state is not _State.CLOSED

    def enter(self) -> int | None:
        """Returns a ticket for `leave`, or None if the request must not be made."""
        if self._state is _State.OPEN and self._clock() >= self._opened_at + self._pause:
            self._become(_State.HALF_OPEN)
        if self._state is _State.OPEN or (self._state is _State.HALF_OPEN and self._admitted >= self._trials):
            return None
        self._admitted += 1
        return self._ticket

    def leave(self, ticket: int, ok: bool | None) -> None:
        """Reports the result; `ok` is None for a cancelled request."""
        if ticket != self._ticket:
            return
        match ok:
            case None:
                self._admitted -= 1
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
            if requests < self._min_requests or 100 * failures < self._percent * requests:
                return
        self._opened_at = self._clock()
        self._become(_State.OPEN)

    def _become(self, state: _State) -> None:
        self._state = state
        self._ticket += 1
        self._admitted = self._succeeded = 0
        self._recent.clear()


class _Recent:
    """Requests and failures of the last seconds, including the current one, one sum per second: memory is bounded."""

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
