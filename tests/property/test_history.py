"""A stream's log against a plain list of all messages ever appended."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from ropewalk.core.history import HistoryTotals, StreamLog
from ropewalk.model.history import Gap, GapReason, Replay
from ropewalk.model.messages import Position, Publication, Registered
from ropewalk.model.rules import StreamRules

TTLS = st.sampled_from([0.0, 1.0, 3.0, 100.0])
PAUSES = st.sampled_from([0.25, 0.5, 1.0, 2.5, 10.0])


class HistoryMachine(RuleBasedStateMachine):
    """The model stores every message and computes the kept ones for each query."""

    @initialize(limit=st.integers(0, 5), ttl=TTLS)
    def begin(self, limit: int, ttl: float) -> None:
        self.limit, self.ttl, self.now = limit, ttl, 1000.0
        self.total = HistoryTotals()
        self.log = StreamLog("a", "epoch", StreamRules(limit, ttl), self.total)
        self.everything: list[Registered] = []

    def kept(self) -> list[Registered]:
        newest = self.everything[-self.limit :] if self.limit else []
        return [message for message in newest if message.timestamp + self.ttl > self.now]

    def oldest(self) -> int:
        return len(self.everything) - len(self.kept()) + 1

    @rule(payload=st.binary(max_size=4))
    def append(self, payload: bytes) -> None:
        publication = Publication("a", payload, exclude_socket="sid", broadcast_type="kind")
        registered = self.log.append(publication, self.now)
        offset = len(self.everything) + 1
        assert registered == Registered("a", payload, self.now, "epoch", offset, "sid", "kind")
        self.everything.append(registered)

    @rule(pause=PAUSES)
    def wait(self, pause: float) -> None:
        self.now += pause

    @rule()
    def trim(self) -> None:
        self.log.trim(self.now)
        kept = self.kept()
        assert (self.total.messages, self.total.bytes) == (len(kept), sum(len(message.payload) for message in kept))

    @rule(epoch=st.sampled_from(["epoch", "", "other"]), offset=st.integers(0, 30))
    def query_after(self, epoch: str, offset: int) -> None:
        tip, kept = len(self.everything), self.kept()
        answer = self.log.after(Position(epoch, offset), self.now)
        if epoch == "other" or (epoch == "" and offset > 0):
            assert answer == self.gap(GapReason.EPOCH_CHANGED)
        elif offset > tip:
            assert answer == Gap("a", GapReason.AHEAD, "epoch", self.oldest(), tip)
        elif self.everything[offset:] == [message for message in kept if message.offset > offset]:
            assert answer == Replay("a", "epoch", tip, tuple(self.everything[offset:]))
        else:
            assert answer == self.gap(GapReason.TRIMMED)

    def gap(self, reason: GapReason) -> Gap:
        """The gap, followed by all kept messages."""
        tip, kept = len(self.everything), tuple(self.kept())
        return Gap("a", reason, "epoch", self.oldest(), tip, rest=Replay("a", "epoch", tip, kept) if kept else None)

    @rule(ago=PAUSES)
    def query_since(self, ago: float) -> None:
        since = self.now - ago
        wanted = [message for message in self.everything if message.timestamp >= since]
        if all(message in self.kept() for message in wanted):
            assert self.log.since(since, self.now) == Replay("a", "epoch", len(self.everything), tuple(wanted))
        else:
            assert self.log.since(since, self.now) == self.gap(GapReason.TRIMMED)

    @rule(after=st.integers(0, 30), limit=st.integers(1, 4))
    def query_page(self, after: int, limit: int) -> None:
        wanted = [message for message in self.kept() if message.offset > after]
        page = self.log.page(after, limit, self.now)
        assert page.messages == tuple(wanted[:limit])
        assert page.next_offset == (wanted[limit - 1].offset if len(wanted) > limit else None)
        assert (page.tip, page.oldest) == (len(self.everything), self.oldest())

    @invariant()
    def the_limit_holds(self) -> None:
        if hasattr(self, "log"):
            assert len(self.log) <= self.limit


TestHistory = HistoryMachine.TestCase
