"""Which workers hang: those that have left the supervisor's questions unanswered for too long.

An answer comes from the event loop of a worker, so that a loop that does not turn gives none. Silence is counted in questions
and not by the clock, for time also passes where nobody runs: a machine that was suspended has asked nothing meanwhile.
"""

from collections.abc import Hashable, Mapping
from typing import Generic, NamedTuple, TypeVar

WatchedWorker = TypeVar("WatchedWorker", bound=Hashable)

LOOK_SECONDS = 5.0
"""Between two looks, at each of which every worker is asked."""

MOST_UNANSWERED = 6
"""Questions in a row without an answer, after which a worker hangs: 30 seconds."""

LATE_LOOKS = 2
"""A look that comes so many times later than it should: the supervisor itself did not run, and nobody else is to blame."""


class _Silence(NamedTuple):
    answers: int
    unanswered: int


class HangWatch(Generic[WatchedWorker]):
    """`look` every LOOK_SECONDS, and after that ask all workers. `now` is of a clock that only goes forward."""

    def __init__(self) -> None:
        self._silences: dict[WatchedWorker, _Silence] = {}
        self._last_look: float | None = None
        self._spared = False

    def look(self, now: float, answers: Mapping[WatchedWorker, int]) -> list[WatchedWorker]:
        """Those that hang, of all workers that serve. `answers`: how many each has given since its start."""
        late = self._last_look is not None and now - self._last_look > LATE_LOOKS * LOOK_SECONDS
        self._last_look = now
        former = {} if late else self._silences
        self._silences = {worker: _next(former.get(worker), given) for worker, given in answers.items()}
        unanswered = [silence.unanswered for silence in self._silences.values()]
        if not all(unanswered):
            self._spared = False
        elif max(unanswered, default=0) >= MOST_UNANSWERED and not self._spared:
            # Nobody answers: more likely it is the machine. If not, they hang after as many questions once more.
            self._spared = True
            self._silences = {worker: _Silence(given, 0) for worker, given in answers.items()}
        return [worker for worker, silence in self._silences.items() if silence.unanswered >= MOST_UNANSWERED]


def _next(former: _Silence | None, answers: int) -> _Silence:
    if former is None or former.answers != answers:
        return _Silence(answers, 0)
    return _Silence(answers, former.unanswered + 1)
