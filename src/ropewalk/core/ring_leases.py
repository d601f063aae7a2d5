"""Decides for a node whose ring is found by leases: found it, join it, wait, or declare a node lost.

A lease says that a node was alive a moment ago; it decides nothing about shards. Two rules keep what is decided by it safe:

- Whoever takes a node for dead has watched its lease not being renewed for the whole time for which leases hold, without an
  interruption, and has had no link to it for as long; and of those who do renew theirs nobody has one. After an absence of the
  store, or of the observer itself, that time begins anew.
- Nobody is declared while more than half of the members do not renew their leases. So whoever may be declared is linked with
  half of them at the most, itself included; it knows that, and registers nothing (`pause`). Where a ring is cut, nothing is
  acknowledged on one side that the other one has declared lost.

A process that is stopped in order says so in its lease (`ended`), after it has served the last request. Then there is nothing
to wait for and nothing to doubt: what it held in memory is gone, and it is declared as soon as nobody is linked with its node.
A lease that is not there says nothing of the kind: the store may have lost it.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from ropewalk.model.ring import MemberLease, RingMember, RingRecord, RingTable, SeenLeases

LEASE_SECONDS = 10.0
RENEW_SECONDS = 1.0

PAUSE_SECONDS = 6.0
"""A node stops well before others may declare it lost: it looks at the clock only now and then."""

GAP_SECONDS = 5.0
"""Without a look at the store for longer, what happened there meanwhile is not known."""

SETTLE_SECONDS = 3.0
"""For so long a node looks before it founds a ring: in a store that has lost everything the leases of a ring that lives are
back by then."""


class Watch:
    """What the process `me` has seen of all leases. `now` is a clock that never goes back, and that of nobody else."""

    def __init__(self, me: MemberLease, now: float) -> None:
        self._me = me
        self._numbers: dict[str, int] = {}  # of the leases that hold, by run
        self._renewed: dict[str, tuple[MemberLease, float]] = {}  # by name
        self._twin: float | None = None
        self._journals: dict[str, bool] = {}
        self._since: float | None = None
        self._last = now
        self._own = now

    def saw(self, asked: float, now: float, seen: SeenLeases) -> None:
        """The store was asked, and has answered. The lease of this node was renewed with that."""
        if self._since is None or now - self._last > GAP_SECONDS:
            self._since = now
        self._last, self._own = now, asked
        if seen.record is not None:
            self._journals.update(seen.record.members)
        for lease in seen.leases:
            before = self._numbers.get(lease.run)
            if before != lease.number and self._tells_more(lease):
                self._renewed[lease.name] = lease, now
            if lease.name == self._me.name and lease.run != self._me.run:
                if lease.ended:
                    self._twin = None
                elif before is not None and before != lease.number:
                    self._twin = now
            if lease.ring:
                self._journals[lease.name] = lease.journal
            else:  # one that looks for a ring may only have the name of a member
                self._journals.setdefault(lease.name, lease.journal)
        self._numbers = {lease.run: lease.number for lease in seen.leases}

    def _tells_more(self, lease: MemberLease) -> bool:
        """The end of a process is not that of its node where another process has come since."""
        known, _ = self._renewed.get(lease.name, (None, 0.0))
        return not lease.ended or known is None or known.run == lease.run

    def missed(self) -> None:
        """The store did not answer."""
        self._since = None

    def contact(self) -> float:
        """Seconds for which the store has been seen without an interruption."""
        return 0.0 if self._since is None else self._last - self._since

    def twin(self) -> bool:
        """Another process with the name of this one lives: its lease was renewed under the eyes of this one."""
        return self._twin is not None and self._last - self._twin < LEASE_SECONDS

    def latest(self, seen: SeenLeases) -> list[MemberLease]:
        """Of each node that has not ended the lease that was renewed last: one that it had before it crashed may hold still."""
        return [lease for lease in seen.leases if self._renewed[lease.name][0].run == lease.run and not lease.ended]

    def silent(self, name: str) -> bool:
        """Its lease was not renewed for as long as leases hold."""
        if self._since is None:
            return False
        _, renewed = self._renewed.get(name, (None, self._since))
        return self._last - max(renewed, self._since) >= LEASE_SECONDS

    def ended(self, name: str) -> bool:
        """Its last process has said so, and belonged to the ring."""
        lease, _ = self._renewed.get(name, (None, 0.0))
        return lease is not None and lease.ended and bool(lease.ring)

    def journal(self, name: str) -> bool:
        """Whether the node has a journal; one of which nothing is known may have one."""
        return self._journals.get(name, True)

    def last_of(self, name: str) -> str:
        """The last sign of life of the node: the same for all who have seen it."""
        lease, _ = self._renewed.get(name, (None, 0.0))
        return "" if lease is None else f"{lease.run}/{lease.number}"

    def linked(self, name: str, others: Iterable[str]) -> bool:
        """Whether one of the others says that it has a link to the node."""
        return any(name in self._renewed[other][0].links for other in others if other in self._renewed)

    def unrenewed(self, now: float) -> float:
        """Seconds since the lease of this node was renewed last."""
        return now - self._own


# --- a node that looks for its ring -----------------------------------------------------------------------------------


class FoundRing(Struct, frozen=True):
    """Begin a ring once the store has taken this record instead of the one that was seen."""

    record: RingRecord


class BeginRing(Struct, frozen=True):
    """The store has this node's record: the ring is its own."""


class JoinRing(Struct, frozen=True):
    """Ask these nodes, which belong to the ring, once the store has taken the record: it knows of this node before the ring
    does, so that nobody founds it anew while this one has something of it."""

    record: RingRecord
    members: tuple[RingMember, ...]


class WaitForRing(Struct, frozen=True):
    """`stuck`: it may not pass by itself, so somebody should hear of it."""

    reason: str
    stuck: bool = False


SeekingStep = FoundRing | BeginRing | JoinRing | WaitForRing


def next_step(me: MemberLease, shards: int, ring: str, seen: SeenLeases, watch: Watch, place: str) -> SeekingStep:
    """`ring` is the id of the ring that `me` would found, `place` where the record is."""
    record = seen.record
    if watch.twin():
        reason = f"another process is the node {me.name} of the ring, and lives: each needs a --ring_node of its own"
        return WaitForRing(reason, stuck=True)
    if record is not None and record.founder == me.run:
        return BeginRing()
    if record is not None and record.shards != shards:
        return WaitForRing(
            f"the ring has {record.shards} shards and this node {shards}: all nodes of a ring have the same --journal_shards",
            stuck=True,
        )
    others = [lease for lease in watch.latest(seen) if lease.name != me.name]
    if same := [lease.name for lease in others if lease.address == me.address]:
        reason = f"{same[0]} has the address of this node, {me.address}: each needs a --ring_address of its own"
        return WaitForRing(reason, stuck=True)
    known = [lease for lease in others if lease.ring]
    if record is None and known:
        return WaitForRing(f"nodes of a ring are there, and will tell {place}")
    if record is not None and (asked := [lease for lease in known if lease.ring == record.ring]):
        with_me = replace(record, members={**record.members, me.name: me.journal})
        return JoinRing(with_me, tuple(RingMember(lease.name, lease.address) for lease in asked))
    if record is not None and any(lease.run == record.founder and not lease.ended for lease in seen.leases):
        return WaitForRing("another node is just founding the ring")
    if record is not None and (kept := sorted(name for name, journal in record.members.items() if journal and name != me.name)):
        return WaitForRing(
            f"no node of the ring is there, and {', '.join(kept)} had a journal: start one of them. If all of that is gone for "
            f"good, remove {place}, and the ring begins anew",
            stuck=True,
        )
    if watch.contact() < SETTLE_SECONDS:
        return WaitForRing("looking for nodes of the ring")
    return FoundRing(RingRecord(ring, shards, me.run, {me.name: me.journal}))


# --- a ring that runs -------------------------------------------------------------------------------------------------


class Verdict(Struct, frozen=True):
    """`lost`: take them out, what they held is gone. `kept`: dead too, and what they hold is in their journals. `doubtful`: so
    many do not renew their leases that it may be a cut as well."""

    lost: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    doubtful: tuple[str, ...] = ()


def verdict(watch: Watch, me: str, members: Sequence[RingMember], away: Mapping[str, float]) -> Verdict:
    """`away`: for how many seconds this node has had no link to each other one; 0 where it has one."""
    names = [member.name for member in members]
    if me not in names:
        return Verdict()
    gone = [name for name in names if name != me and (watch.ended(name) or watch.silent(name))]
    others = [name for name in names if name != me and name not in gone]
    unlinked = [name for name in gone if away.get(name, 0.0) > 0 and not watch.linked(name, others)]
    ended = tuple(name for name in unlinked if watch.ended(name) and not watch.journal(name))
    dead = tuple(name for name in unlinked if name not in ended and watch.silent(name) and away[name] >= LEASE_SECONDS)
    if 2 * len(gone) > len(names):
        return Verdict(ended, doubtful=dead)
    kept = tuple(name for name in dead if watch.journal(name))
    return Verdict((*ended, *(name for name in dead if name not in kept)), kept)


def pause(watch: Watch, me: MemberLease, members: Sequence[RingMember], linked: Collection[str], now: float) -> str:
    """Why this node is to register nothing, "" if it may: others may be about to declare it lost, and then that is lost too.
    `linked`: nodes that it has a link to. One with a journal is never declared lost by its lease."""
    names = [member.name for member in members]
    reached = sum(name == me.name or name in linked for name in names)
    if me.journal or me.name not in names or 2 * reached > len(names) or watch.unrenewed(now) < PAUSE_SECONDS:
        return ""
    return "this node reaches neither the store of the leases nor more than half of its ring, which may go on without it"


DECLARED = "lost"


def declaration(watch: Watch, name: str) -> str:
    """The id of the change that declares a node lost: the same one at all who have seen the same of it."""
    return f"{DECLARED}/{name}/{watch.last_of(name)}"


def declared(changes: Iterable[str], me: MemberLease) -> set[str]:
    """Which of the changes declare this node lost. It lives, so it may join again; also if an earlier process was meant, whose
    end was noticed a moment too late."""
    return {change for change in changes if change.startswith(f"{DECLARED}/{me.name}/")}


def record_of(ring: str, table: RingTable, seen: SeenLeases, watch: Watch, me: MemberLease) -> RingRecord:
    """What the store should know: all members, and those that are about to join."""
    before = RingRecord(ring, table.shards, "", {}) if seen.record is None else seen.record
    names = {member.name for member in table.members} | (before.members.keys() & {lease.name for lease in seen.leases})
    journals = {name: me.journal if name == me.name else watch.journal(name) for name in sorted(names)}
    return replace(before, members=journals)
