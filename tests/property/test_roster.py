"""The roster against one flat dict of holds; events are the difference of the members before and after."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ropewalk.core.roster import Roster
from ropewalk.model.errors import LimitReached
from ropewalk.model.presence import Member, PresenceEvent

STREAMS = st.sampled_from("ab")
SIDS = st.sampled_from(["s1", "s2", "s3", "s4", "s5"])
MEMBERS = st.builds(Member, st.sampled_from(["m1", "m2", "m3", "m4"]), st.sampled_from([b"", b"1", b"2"]))
MAX_MEMBERS = 3
Holds = dict[tuple[str, str], Member]


class RosterMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.roster = Roster(MAX_MEMBERS)
        self.now = 100.0
        self.holds: Holds = {}  # (stream, sid) -> member, in the order of the joins
        self.deadlines: dict[str, float] = {}

    def change(self, holds: Holds) -> list[PresenceEvent]:
        """Apply the new holds and return the expected events: leaves, then joins."""
        before, after = present(self.holds), present(holds)
        self.holds = holds
        self.deadlines = {sid: at for sid, at in self.deadlines.items() if any(sid == held for _, held in holds)}
        leaves = [PresenceEvent("leave", stream, Member(member)) for stream, member in before - after]
        joins = [PresenceEvent("join", stream, self.shown(stream, member)) for stream, member in after - before]
        return in_order(leaves) + in_order(joins)

    def shown(self, stream: str, member: str) -> Member:
        """As the last session that joined says, of those that are there."""
        return [held for (where, _), held in self.holds.items() if (where, held.id) == (stream, member)][-1]

    @rule(stream=STREAMS, sid=SIDS, member=MEMBERS)
    def join(self, stream: str, sid: str, member: Member) -> None:
        others = {hold: held for hold, held in self.holds.items() if hold != (stream, sid)}
        holds = {**others, (stream, sid): member}
        if sum(where == stream for where, _ in present(holds)) > MAX_MEMBERS:
            try:
                self.roster.join(stream, sid, member)
            except LimitReached:
                return
            raise AssertionError("one member more than allowed")
        assert without_infos(self.roster.join(stream, sid, member)) == self.change(holds)

    @rule(stream=STREAMS, sid=SIDS)
    def leave(self, stream: str, sid: str) -> None:
        holds = {hold: member for hold, member in self.holds.items() if hold != (stream, sid)}
        assert without_infos(self.roster.leave(stream, sid)) == self.change(holds)

    @rule(sid=SIDS, ttl=st.integers(0, 5))
    def detach(self, sid: str, ttl: int) -> None:
        self.roster.detach(sid, self.now + ttl)
        if any(sid == held for _, held in self.holds):
            self.deadlines[sid] = self.now + ttl

    @rule(old=SIDS, new=SIDS)
    def adopt(self, old: str, new: str) -> None:
        self.roster.adopt(old, new)
        if old == new:
            self.deadlines.pop(old, None)
            return
        moving = {(stream, sid): held for (stream, sid), held in self.holds.items() if sid == old}
        moving = {hold: held for hold, held in moving.items() if self.holds.get((hold[0], new), held).id == held.id}
        holds = {hold: held for hold, held in self.holds.items() if hold not in moving}
        for (stream, _), held in moving.items():
            holds.setdefault((stream, new), held)
        assert self.change(holds) == []
        if any(old == held for _, held in holds):
            self.deadlines[old] = 0.0

    @rule(pause=st.integers(1, 4))
    def wait_and_expire(self, pause: int) -> None:
        self.now += pause
        over = {sid for sid, at in self.deadlines.items() if at <= self.now}
        holds = {(stream, sid): member for (stream, sid), member in self.holds.items() if sid not in over}
        assert in_order(without_infos(self.roster.expire(self.now))) == self.change(holds)

    @rule(stream=STREAMS, after=st.sampled_from(["", "m1", "m2", "m4"]), limit=st.integers(1, 3))
    def page(self, stream: str, after: str, limit: int) -> None:
        all_members = sorted(member for where, member in present(self.holds) if where == stream)
        wanted = [member for member in all_members if member > after]
        page = self.roster.page(stream, after, limit)
        assert page.total == len(all_members)
        assert page.members == tuple(self.shown(stream, member) for member in wanted[:limit])
        assert page.next_id == (wanted[limit - 1] if len(wanted) > limit else None)

    @invariant()
    def counts_match_the_model_and_no_state_is_left(self) -> None:
        assert self.roster.members == len(present(self.holds))
        assert set(self.roster._sets) == {stream for stream, _ in self.holds}
        assert set(self.roster._held) == {sid for _, sid in self.holds}
        assert len(self.roster._detached) == len(self.deadlines)


def present(holds: Holds) -> set[tuple[str, str]]:
    return {(stream, member.id) for (stream, _), member in holds.items()}


def without_infos(events: list[PresenceEvent]) -> list[PresenceEvent]:
    """Nobody is told the info of a member that leaves."""
    return [
        PresenceEvent("leave", event.stream, Member(event.member.id)) if event.type == "leave" else event for event in events
    ]


def in_order(events: list[PresenceEvent]) -> list[PresenceEvent]:
    return sorted(events, key=lambda event: (event.stream, event.member.id))


TestRoster = RosterMachine.TestCase
