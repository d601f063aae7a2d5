"""The kept history of one stream, as the runs that JetStream has of it tell.

Invariant: what counts joins up to the last run. Something older may be trimmed away while it is being read. Of all that is read
no more than one answer stays in memory.
"""

from math import inf

from ropewalk.adapters.backends.nats.runs import Run
from ropewalk.model.history import MAX_ANSWER_BYTES, MESSAGE_OVERHEAD_BYTES
from ropewalk.model.messages import Registered
from ropewalk.model.rules import StreamRules


class KeptHistory:
    """Made of a stream's last run; then `add` each run from the oldest on, or from where the wanted messages begin.

    `wanted`: the offset that messages have to be above, the time that they have to be from, and how many they may be.
    `trimmed_at`: the time of the newest message that is not kept any more. `full`: no further message fits into the answer.
    """

    def __init__(self, last: Run, rules: StreamRules, now: float, after: int = 0, since: float = -inf, limit: int = 0) -> None:
        self.stream, self.epoch, self.tip = last.stream, last.epoch, last.tip
        self._after = after
        self._since = since
        self._limit = limit
        self._oldest_by_number = self.tip + 1 - (rules.history_limit if rules.history_ttl > 0 else 0)
        self._expired = now - rules.history_ttl
        self._next = -1
        self.oldest = self.tip + 1
        self.trimmed_at = last.timestamp
        self.messages: list[Registered] = []
        self.full = False
        self.bytes = 0  # of all that is kept, as far as it was read
        self._room = MAX_ANSWER_BYTES

    @property
    def kept(self) -> int:
        return self.tip + 1 - self.oldest

    @property
    def enough(self) -> bool:
        """Runs that follow change nothing."""
        return self.full or (self._after >= self.tip and self.kept > 0)

    def add(self, run: Run) -> bool:
        """Whether some of its messages are in the answer."""
        if run.epoch != self.epoch:
            return False
        if run.first != self._next:
            self._begin(run)
        self._next = run.tip + 1
        had = len(self.messages)
        for message in run.messages(kept=True):
            if message.offset <= self.tip:
                self._add(message)
        return len(self.messages) > had

    def _begin(self, run: Run) -> None:
        """Nothing before this run joins up to it. The time of the message before it is not known, only that it was
        not later."""
        self.oldest, self.trimmed_at = self.tip + 1, run.timestamp if run.first > 1 else -inf
        self.messages, self.full, self.bytes, self._room = [], False, 0, MAX_ANSWER_BYTES

    def _add(self, message: Registered) -> None:
        if message.offset < self._oldest_by_number or message.timestamp <= self._expired:
            self.trimmed_at = message.timestamp
            return
        self.oldest = min(self.oldest, message.offset)
        self.bytes += message.size
        if self.full or message.offset <= self._after or message.timestamp < self._since:
            return
        self._room -= message.size + MESSAGE_OVERHEAD_BYTES
        self.full = self._room < 0 and bool(self.messages)
        if not self.full:
            self.messages.append(message)
            self.full = len(self.messages) == self._limit
