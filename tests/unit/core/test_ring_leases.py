"""Decisions of a node that finds its ring by leases, made from observed leases without a store."""

from typing import Any

import pytest
from msgspec.structs import replace

from ropewalk.core.ring_leases import (
    LEASE_SECONDS,
    PAUSE_SECONDS,
    SETTLE_SECONDS,
    BeginRing,
    FoundRing,
    JoinRing,
    SeekingStep,
    Verdict,
    WaitForRing,
    Watch,
    declaration,
    declared,
    next_step,
    pause,
    record_of,
    verdict,
)
from ropewalk.core.ring_table import first_table
from ropewalk.model.ring import MemberLease, RingMember, RingRecord, SeenLeases

SHARDS = 16
RECORD_PLACE = "the record"


def lease(name: str, number: int = 1, ring: str = "R", journal: bool = False, run: str = "1") -> MemberLease:
    return MemberLease(name, f"{name}:8080", f"{name}~{run}", number, journal, ring)


def record(members: str, journals: str = "", founder: str = "gone~0") -> RingRecord:
    return RingRecord("R", SHARDS, founder, {name: name in journals for name in members})


def members(names: str) -> list[RingMember]:
    return [RingMember(name, f"{name}:8080") for name in names]


# --- seeking a ring ---------------------------------------------------------------------------------------------------


def step(*others: MemberLease, record: RingRecord | None = None, contact: float = SETTLE_SECONDS) -> SeekingStep:
    me = lease("x", ring="")
    watch, observations = Watch(me, 0.0), round(contact) + 1
    for number in range(observations):
        seen = SeenLeases((*others, replace(me, number=number)), record, "" if record is None else "1")
        watch.saw(number, number, seen)
    return next_step(me, SHARDS, "N", seen, watch, RECORD_PLACE)


def test_node_founds_the_ring_after_one_observation_if_none_exists() -> None:
    assert isinstance(step(contact=0.0), WaitForRing)
    assert step() == FoundRing(RingRecord("N", SHARDS, "x~1", {"x": False}))


def test_other_seeking_nodes_do_not_prevent_founding() -> None:
    assert isinstance(step(lease("a", ring="")), FoundRing)


def test_live_ring_is_joined_through_members_with_a_lease() -> None:
    stored = record("abc")
    found = step(lease("a"), lease("b"), lease("y", ring=""), lease("z", ring="other"), record=stored, contact=0.0)
    assert found == JoinRing(replace(stored, members={**stored.members, "x": False}), tuple(members("ab")))


def test_renewed_lease_wins_over_the_former_one_of_the_same_node() -> None:
    me, former = lease("x", ring=""), replace(lease("a", run="2"), address="former:1")
    watch = Watch(me, 0.0)
    for now in range(2):
        seen = SeenLeases((lease("a", number=now), former, me), record("a"))
        watch.saw(now, now, seen)
    found = next_step(me, SHARDS, "N", seen, watch, RECORD_PLACE)
    assert isinstance(found, JoinRing)
    assert found.members == tuple(members("a"))


def test_live_ring_with_a_lost_record_is_not_founded_again() -> None:
    assert isinstance(step(lease("a")), WaitForRing)


def test_no_other_node_founds_while_the_founder_is_starting() -> None:
    founding = record("a", founder="a~1")
    assert step(lease("a", ring=""), record=founding) == WaitForRing("another node is just founding the ring")
    assert isinstance(step(lease("a", ring="", run="2"), record=founding), FoundRing)  # that process has ended


def test_founder_that_missed_the_response_finds_its_own_record() -> None:
    assert step(record=record("x", founder="x~1"), contact=0.0) == BeginRing()


def test_node_waits_for_members_with_a_journal_by_name(subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, str, str]] = [("ab", "b", "b"), ("abc", "ac", "a, c"), ("ax", "ax", "a")]
    for names, journals, waits_for in rows:
        with subtests.test(names=names, journals=journals, waits_for=waits_for):
            found = step(record=record(names, journals))
            assert isinstance(found, WaitForRing)
            assert f"and {waits_for} had a journal" in found.reason
            assert RECORD_PLACE in found.reason


def test_ring_without_live_members_or_foreign_journals_is_founded_again(subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, str]] = [("ab", ""), ("x", "x")]
    for names, journals in rows:
        with subtests.test(names=names, journals=journals):
            assert isinstance(step(record=record(names, journals), contact=0.0), WaitForRing)
            assert step(record=record(names, journals)) == FoundRing(RingRecord("N", SHARDS, "x~1", {"x": False}))


def test_different_shard_count_is_reported() -> None:
    found = step(lease("a"), record=replace(record("a"), shards=4))
    assert isinstance(found, WaitForRing)
    assert "--journal_shards" in found.reason


def test_address_of_another_node_is_reported() -> None:
    found = step(replace(lease("a"), address="x:8080"), record=record("a"))
    assert found == WaitForRing("a has the address of this node, x:8080: each needs a --ring_address of its own", stuck=True)


def test_second_process_of_a_live_node_waits_but_not_after_a_crash() -> None:
    me, former = lease("x", ring=""), lease("x", run="0")
    crashed, living = Watch(me, 0.0), Watch(me, 0.0)
    for number in range(5):
        crashed.saw(number, number, SeenLeases((former, replace(me, number=number))))
        living.saw(number, number, seen := SeenLeases((replace(former, number=number), replace(me, number=number))))
    assert isinstance(next_step(me, SHARDS, "N", seen, crashed, RECORD_PLACE), FoundRing)
    waiting = next_step(me, SHARDS, "N", seen, living, RECORD_PLACE)
    reason = "another process is the node x of the ring, and lives: each needs a --ring_node of its own"
    assert waiting == WaitForRing(reason, stuck=True)
    for number in range(5, 5 + round(LEASE_SECONDS)):  # it has ended
        living.saw(number, number, SeenLeases((replace(me, number=number),)))
    assert isinstance(next_step(me, SHARDS, "N", seen, living, RECORD_PLACE), FoundRing)


# --- watching ---------------------------------------------------------------------------------------------------------


class Observer:
    """Observes the leases once a second. `renewing`: nodes that renew their leases meanwhile."""

    def __init__(self, *seen: MemberLease, record: RingRecord | None = None) -> None:
        self.now = 1000.0
        self.watch = Watch(lease("a"), self.now)
        self._number = 1
        self._leases = {each.name: each for each in seen}
        self.record = record
        self.look()

    def look(self, seconds: float = 0.0, renewing: str = "", reachable: bool = True) -> None:
        for _ in range(round(seconds) or 1):
            self.now += 1.0 if seconds else 0.0
            self._number += 1
            for name in renewing:
                self._leases[name] = replace(self._leases[name], number=self._number)
            if reachable:
                self.watch.saw(self.now, self.now, SeenLeases(tuple(self._leases.values()), self.record))
            else:
                self.watch.missed()

    def see(self, *leases: MemberLease) -> None:
        """Observe exactly these leases, without advancing the clock."""
        self.watch.saw(self.now, self.now, SeenLeases(leases, self.record))

    def forget(self) -> None:
        self._leases.clear()
        self.record = None


def lost(observer: Observer, names: str = "abc", linked: str = "", away: float = LEASE_SECONDS) -> Verdict:
    return verdict(observer.watch, "a", members(names), {name: 0.0 if name in linked else away for name in names})


def test_node_without_a_journal_is_lost_when_its_lease_expires() -> None:
    observer = Observer(lease("b"), lease("c"))
    observer.look(LEASE_SECONDS - 1, renewing="c")
    assert lost(observer) == Verdict()
    observer.look(1, renewing="c")
    assert lost(observer) == Verdict(lost=("b",))
    assert lost(observer, linked="b") == Verdict()  # b only fails to reach the store
    assert lost(observer, away=LEASE_SECONDS - 1) == Verdict()  # b may not have noticed the partition yet


def test_node_linked_with_another_one_is_not_lost() -> None:
    observer = Observer(lease("b"), replace(lease("c"), links=("b",)))
    observer.look(LEASE_SECONDS, renewing="c")
    assert lost(observer) == Verdict()


def test_node_with_a_journal_or_an_unknown_one_is_kept() -> None:
    observer = Observer(lease("b", journal=True), lease("c"), lease("d"))
    observer.look(LEASE_SECONDS, renewing="cd")
    assert lost(observer, "abcd") == Verdict(kept=("b",))
    observer = Observer(lease("c"))
    observer.look(LEASE_SECONDS, renewing="c")
    assert lost(observer) == Verdict(kept=("b",))


def test_record_decides_about_the_journal_and_a_seeking_process_does_not() -> None:
    observer = Observer(lease("b", ring=""), lease("c"), record=record("abc", "b"))
    observer.look(LEASE_SECONDS, renewing="c")
    assert lost(observer) == Verdict(kept=("b",))
    observer = Observer(lease("b", ring=""), lease("c"), record=record("ac"))  # b crashed before it announced its join
    observer.look(LEASE_SECONDS, renewing="c")
    assert lost(observer) == Verdict(lost=("b",))


def test_store_outage_declares_no_node_lost_and_restarts_the_lease_time() -> None:
    observer = Observer(lease("b"), lease("c"))
    observer.look(LEASE_SECONDS - 1, renewing="c")
    observer.look(100, reachable=False)
    assert lost(observer) == Verdict()
    observer.look(LEASE_SECONDS, renewing="c")
    assert lost(observer) == Verdict()
    observer.look(1, renewing="c")
    assert lost(observer) == Verdict(lost=("b",))


def test_paused_observer_declares_no_node_lost() -> None:
    observer = Observer(lease("b"), lease("c"))
    observer.now += 100
    observer.look(1, renewing="c")
    assert lost(observer) == Verdict()


def test_store_that_lost_its_data_declares_no_renewing_node_lost() -> None:
    observer = Observer(lease("b"), lease("c"), record=record("abc"))
    observer.look(LEASE_SECONDS - 1, renewing="bc")
    observer.forget()
    observer.look(2)
    assert lost(observer) == Verdict()


def test_majority_is_not_declared_lost_and_outsiders_declare_none() -> None:
    observer = Observer(lease("b"), lease("c"))
    observer.look(LEASE_SECONDS)
    assert lost(observer) == Verdict(doubtful=("b", "c"))
    assert lost(observer, linked="c") == Verdict(doubtful=("b",))  # c may be linked with it
    assert lost(observer, "ab") == Verdict(lost=("b",))
    assert lost(observer, "bcd") == Verdict()


# --- stopped nodes ----------------------------------------------------------------------------------------------------


def ended(name: str, number: int = 9, **also: Any) -> MemberLease:
    return replace(lease(name, number, **also), ended=True)


def test_stopped_node_without_a_journal_is_lost_once_no_node_is_linked_with_it() -> None:
    observer = Observer(lease("b"), replace(lease("c"), links=("b",)))
    observer.see(ended("b"), replace(lease("c"), links=("b",)))
    assert lost(observer, away=0.1) == Verdict()  # c has not noticed the stop, or is linked with the successor
    observer.see(ended("b"), lease("c", 2))
    assert lost(observer, linked="b") == Verdict()
    assert lost(observer, away=0.1) == Verdict(lost=("b",))
    assert declaration(observer.watch, "b") == "lost/b/b~1/9"


def test_stopped_node_with_a_journal_is_never_lost() -> None:
    observer = Observer(lease("b", journal=True), lease("c"))
    observer.see(ended("b", journal=True), lease("c", 2))
    assert lost(observer) == Verdict()
    observer = Observer(ended("b", journal=True), lease("c"))
    observer.look(LEASE_SECONDS, renewing="c")
    assert lost(observer) == Verdict(kept=("b",))


def test_vanished_lease_is_not_a_stop() -> None:
    observer = Observer(lease("b"), lease("c"))
    observer.see(lease("c", 2))
    assert lost(observer) == Verdict()


def test_stop_of_a_process_does_not_apply_to_its_successor() -> None:
    for both in ((ended("b"), lease("b", run="2")), (lease("b", run="2"), ended("b"))):
        observer = Observer(lease("b"), lease("c"))
        observer.see(*both, lease("c", 2))
        assert lost(observer) == Verdict()
        observer.see(lease("c", 3))  # the store lost some leases and has them again
        observer.see(*both, lease("c", 4))
        assert lost(observer) == Verdict()


def test_stop_of_a_seeking_process_does_not_apply_to_the_member_of_that_name() -> None:
    observer = Observer(lease("b"), lease("c"))
    observer.see(lease("b"), lease("b", ring="", run="2"), lease("c", 2))
    observer.see(lease("b"), ended("b", ring="", run="2"), lease("c", 3))
    assert lost(observer) == Verdict()


def test_stopped_nodes_are_lost_regardless_of_the_majority() -> None:
    observer = Observer(lease("b"), lease("c"))
    observer.see(ended("b"), ended("c"))
    assert lost(observer, away=0.1) == Verdict(lost=("b", "c"))
    observer = Observer(lease("b"), lease("c"), lease("d"))
    observer.look(LEASE_SECONDS, renewing="b")
    observer.see(ended("b", 99), lease("c"), lease("d"))
    assert lost(observer, "abcd") == Verdict(lost=("b",), doubtful=("c", "d"))


def test_seeking_node_does_not_wait_for_stopped_processes() -> None:
    assert isinstance(step(ended("a"), ended("b"), record=record("ab")), FoundRing)
    assert isinstance(step(ended("a", ring=""), record=record("a", founder="a~1")), FoundRing)
    assert isinstance(step(replace(ended("a"), address="x:8080"), record=record("a")), FoundRing)
    waiting = step(ended("a", journal=True), record=record("a", "a"))
    assert isinstance(waiting, WaitForRing)
    assert "a had a journal" in waiting.reason
    found = step(ended("a"), lease("b"), record=record("ab"))
    assert isinstance(found, JoinRing)
    assert found.members == tuple(members("b"))


def test_stopped_predecessor_is_not_a_twin() -> None:
    me = lease("x", ring="")
    watch = Watch(me, 0.0)
    for number in range(4):
        watch.saw(number, number, SeenLeases((lease("x", number, run="0"), replace(me, number=number))))
    assert watch.twin()
    watch.saw(4, 4, SeenLeases((ended("x", 4, run="0"), replace(me, number=4))))
    assert not watch.twin()


# --- nodes that may be declared lost ----------------------------------------------------------------------------------


def test_node_without_its_lease_and_a_majority_pauses(subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, str, bool, bool]] = [
        ("ab", "", False, True),
        ("abc", "", False, True),
        ("abcd", "b", False, True),
        ("abc", "b", False, False),
        ("ab", "b", False, False),
        ("a", "", False, False),
        ("ab", "", True, False),
        ("bc", "", False, False),
    ]
    for names, linked, journal, paused in rows:
        with subtests.test(names=names, linked=linked, journal=journal, paused=paused):
            observer, me = Observer(lease("a")), lease("a", journal=journal)
            observer.look(4, reachable=False)
            for seconds, expected in ((PAUSE_SECONDS - 1, False), (PAUSE_SECONDS, paused)):
                assert bool(pause(observer.watch, me, members(names), linked, 1000.0 + seconds)) is expected
            observer.look(1)
            assert pause(observer.watch, me, members(names), linked, observer.now) == ""


def test_observers_make_the_same_declaration_and_the_node_recognizes_it() -> None:
    one, other = Observer(lease("b", 7)), Observer(lease("b", 3), lease("b", 7))
    change = declaration(one.watch, "b")
    assert change == declaration(other.watch, "b")
    assert declared(["x", change], lease("b")) == {change}
    assert declared(["x", change], lease("b", run="2")) == {change}  # the next process of the node
    assert declared(["x", change], lease("a")) == set()


def test_record_has_all_members_and_joining_nodes() -> None:
    seen = SeenLeases((lease("a"), lease("d", ring="")), record("abdz"), "1")
    observer = Observer(lease("b", journal=True), lease("d", ring=""))
    wanted = record_of("N", first_table(members("ab"), SHARDS), seen, observer.watch, lease("a"))
    assert wanted == record("abd", "b")
    new_record = record_of("N", first_table(members("ab"), SHARDS), SeenLeases(()), observer.watch, lease("a", journal=True))
    assert new_record == RingRecord("N", SHARDS, "", {"a": True, "b": True})
