"""Rings with partitions between nodes and between nodes and the store: no node declared lost registers
anything, and dead nodes are declared lost if enough nodes remain."""

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from ropewalk.core.ring_leases import LEASE_SECONDS, RENEW_SECONDS, Watch, pause, verdict
from ropewalk.model.ring import MemberLease, RingMember, SeenLeases

TICK = 0.5
NOTICE_SECONDS = 6.0  # until a broken link is noticed
ANSWER_SECONDS = 3.0  # until a request to an unreachable store times out
SECONDS = 60.0


@dataclass
class Node:
    """A node that observes the leases, like `LeasedMembers`."""

    name: str
    look_at: float
    answer_at: float | None = None  # timeout of a request to an unreachable store
    alive: bool = True
    paused: str = ""
    ended: bool = False
    members: list[RingMember] = field(default_factory=list)  # in its view
    lease: MemberLease = field(init=False)
    watch: Watch = field(init=False)

    def __post_init__(self) -> None:
        self.lease = MemberLease(self.name, "", self.name, 0, journal=False, ring="R")
        self.watch = Watch(self.lease, self.look_at)


@dataclass(frozen=True)
class Cut:
    """A permanent fault: nodes lose the store, pairs of nodes lose their link, nodes die, and nodes are
    stopped."""

    time: float
    storeless: frozenset[str]
    pairs: frozenset[tuple[str, str]]
    deaths: frozenset[str]
    ends: frozenset[str] = frozenset()


class Simulation:
    def __init__(self, names: str, delays: dict[tuple[str, str], float], starts: list[float], cuts: list[Cut]) -> None:
        self._delays = delays
        self._cuts = cuts
        self.nodes = {name: Node(name, start) for name, start in zip(names, starts, strict=False)}
        for node in self.nodes.values():
            node.members = [RingMember(name, "") for name in names]
        self._stored: dict[str, tuple[MemberLease, float]] = {}
        self._broken: dict[tuple[str, str], float] = {}  # when the link from one node to another broke
        self._storeless: set[str] = set()
        self.declared: set[str] = set()

    def run(self, until: float = SECONDS) -> None:
        now = 0.0
        while now < until and all(self.nodes[name].ended for name in self.declared):  # processes do not restart
            for cut in self._cuts:
                if cut.time == now:
                    self._apply(cut)
            for node in self.nodes.values():
                if node.alive:
                    self._step(node, now)
            now += TICK

    def _apply(self, cut: Cut) -> None:
        self._storeless |= cut.storeless
        for one, other in cut.pairs:
            for pair in ((one, other), (other, one)):
                self._broken.setdefault(pair, cut.time)
        for name in cut.ends - self._storeless:
            if self.nodes[name].alive:
                self.nodes[name].ended = True
                last = self.nodes[name].lease
                self._stored[name] = replace(last, number=last.number + 1, links=(), ended=True), cut.time + LEASE_SECONDS
        for name in cut.deaths | cut.ends:
            self.nodes[name].alive = False
            for other in self.nodes:
                self._broken.setdefault((other, name), cut.time)

    def _away(self, name: str, now: float) -> dict[str, float]:
        lost = {
            other: self._broken[name, other] + self._delays[name, other]
            for other in self.nodes
            if (name, other) in self._broken
        }
        return {other: max(0.0, now - lost[other]) if other in lost else 0.0 for other in self.nodes if other != name}

    def _step(self, node: Node, now: float) -> None:
        away = self._away(node.name, now)
        linked = [name for name, seconds in away.items() if not seconds]
        for other in (self.nodes[name] for name in linked if (node.name, name) not in self._broken):
            node.members = [member for member in node.members if member in other.members]  # linked nodes share their views
        if node.answer_at is not None and now >= node.answer_at:
            node.watch.missed()
            node.answer_at, node.look_at = None, now + RENEW_SECONDS
            node.paused = pause(node.watch, node.lease, node.members, linked, now)
        elif node.answer_at is None and now >= node.look_at:
            node.paused = pause(node.watch, node.lease, node.members, linked, now)
            if node.name in self._storeless:
                node.answer_at = now + ANSWER_SECONDS
            else:
                self._look(node, now, linked, away)

    def _look(self, node: Node, now: float, linked: list[str], away: dict[str, float]) -> None:
        node.lease = replace(node.lease, number=node.lease.number + 1, links=tuple(linked))
        self._stored[node.name] = node.lease, now + LEASE_SECONDS
        node.watch.saw(now, now, SeenLeases(tuple(lease for lease, ends in self._stored.values() if ends > now)))
        node.paused = pause(node.watch, node.lease, node.members, linked, now)
        node.look_at = now + RENEW_SECONDS
        for name in verdict(node.watch, node.name, node.members, away).lost:
            self.declared.add(name)
            node.members = [member for member in node.members if member.name != name]
            lost = self.nodes[name]
            assert not lost.alive or lost.paused, f"{node.name} declares {name} lost, which still runs"


@st.composite
def simulations(draw: st.DrawFn) -> Simulation:
    names = "abcde"[: draw(st.integers(2, 5))]
    pairs = [(one, other) for one in names for other in names if one < other]
    delays = {pair: draw(st.sampled_from([0.0, TICK, 3.0, NOTICE_SECONDS])) for pair in [*pairs, *((b, a) for a, b in pairs)]}
    starts = [draw(st.sampled_from([0.0, TICK])) for _ in names]
    cuts = draw(
        st.lists(
            st.builds(
                Cut,
                st.integers(8, 60).map(lambda ticks: ticks * TICK),
                st.frozensets(st.sampled_from(names)),
                st.frozensets(st.sampled_from(pairs)),
                st.frozensets(st.sampled_from(names), max_size=1),
                st.frozensets(st.sampled_from(names), max_size=2),
            ),
            max_size=3,
        )
    )
    return Simulation(names, delays, starts, cuts)


@given(simulations())
def test_node_declared_lost_is_dead_or_paused(simulation: Simulation) -> None:
    simulation.run()


@given(st.integers(2, 5), st.data())
def test_up_to_half_of_a_ring_may_die_and_is_declared_lost(size: int, data: st.DataObject) -> None:
    names = "abcde"[:size]
    dead = frozenset(data.draw(st.sets(st.sampled_from(names), min_size=1, max_size=size // 2)))
    delays = {(one, other): NOTICE_SECONDS for one in names for other in names}
    simulation = Simulation(names, delays, [0.0] * size, [Cut(20.0, frozenset(), frozenset(), dead)])
    simulation.run()
    assert simulation.declared == dead


@given(st.integers(2, 5), st.data())
def test_all_but_one_node_may_be_stopped_and_are_declared_within_the_lease(size: int, data: st.DataObject) -> None:
    names = "abcde"[:size]
    stopped = frozenset(data.draw(st.sets(st.sampled_from(names), min_size=1, max_size=size - 1)))
    delays = {(one, other): 0.0 for one in names for other in names}
    simulation = Simulation(names, delays, [0.0] * size, [Cut(20.0, frozenset(), frozenset(), frozenset(), stopped)])
    simulation.run(until=20.0 + LEASE_SECONDS / 2)
    assert simulation.declared == stopped
