"""What a node does that finds its ring by leases: from what it has seen of them, and without a store."""

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
PLACE = "the record"


def lease(name: str, number: int = 1, ring: str = "R", journal: bool = False, run: str = "1") -> MemberLease:
    return MemberLease(name, f"{name}:8080", f"{name}~{run}", number, journal, ring)


def record(members: str, journals: str = "", founder: str = "gone~0") -> RingRecord:
    return RingRecord("R", SHARDS, founder, {name: name in journals for name in members})


def members(names: str) -> list[RingMember]:
    return [RingMember(name, f"{name}:8080") for name in names]


# --- looking for a ring -----------------------------------------------------------------------------------------------


def step(*others: MemberLease, record: RingRecord | None = None, contact: float = SETTLE_SECONDS) -> SeekingStep:
    me = lease("x", ring="")
    watch, looks = Watch(me, 0.0), round(contact) + 1
    for number in range(looks):
        seen = SeenLeases((*others, replace(me, number=number)), record, "" if record is None else "1")
        watch.saw(number, number, seen)
    return next_step(me, SHARDS, "N", seen, watch, PLACE)


def test_where_nothing_is_known_a_node_founds_the_ring_after_a_look() -> None:
    assert isinstance(step(contact=0.0), WaitForRing)
    assert step() == FoundRing(RingRecord("N", SHARDS, "x~1", {"x": False}))


def test_others_that_look_for_a_ring_too_keep_nobody_from_founding() -> None:
    assert isinstance(step(lease("a", ring="")), FoundRing)


def test_a_ring_that_lives_is_joined_by_the_members_that_hold_a_lease_and_told_to_the_store_first() -> None:
    kept = record("abc")
    found = step(lease("a"), lease("b"), lease("y", ring=""), lease("z", ring="other"), record=kept, contact=0.0)
    assert found == JoinRing(replace(kept, members={**kept.members, "x": False}), tuple(members("ab")))


def test_of_a_node_that_crashed_and_came_back_the_lease_counts_that_is_renewed() -> None:
    me, former = lease("x", ring=""), replace(lease("a", run="2"), address="former:1")
    watch = Watch(me, 0.0)
    for now in range(2):
        seen = SeenLeases((lease("a", number=now), former, me), record("a"))
        watch.saw(now, now, seen)
    found = next_step(me, SHARDS, "N", seen, watch, PLACE)
    assert isinstance(found, JoinRing)
    assert found.members == tuple(members("a"))


def test_a_ring_whose_record_was_lost_is_not_founded_anew() -> None:
    assert isinstance(step(lease("a")), WaitForRing)


def test_while_the_founder_is_about_to_begin_nobody_else_founds() -> None:
    founding = record("a", founder="a~1")
    assert step(lease("a", ring=""), record=founding) == WaitForRing("another node is just founding the ring")
    assert isinstance(step(lease("a", ring="", run="2"), record=founding), FoundRing)  # that process is gone


def test_a_founder_that_did_not_hear_the_answer_finds_its_own_record() -> None:
    assert step(record=record("x", founder="x~1"), contact=0.0) == BeginRing()


@pytest.mark.parametrize(("names", "journals", "waits_for"), [("ab", "b", "b"), ("abc", "ac", "a, c"), ("ax", "ax", "a")])
def test_journals_are_waited_for_by_name(names: str, journals: str, waits_for: str) -> None:
    found = step(record=record(names, journals))
    assert isinstance(found, WaitForRing)
    assert f"and {waits_for} had a journal" in found.reason
    assert PLACE in found.reason


@pytest.mark.parametrize(("names", "journals"), [("ab", ""), ("x", "x")])
def test_a_ring_that_is_gone_with_its_memory_is_founded_anew(names: str, journals: str) -> None:
    assert isinstance(step(record=record(names, journals), contact=0.0), WaitForRing)
    assert step(record=record(names, journals)) == FoundRing(RingRecord("N", SHARDS, "x~1", {"x": False}))


def test_another_number_of_shards_is_told() -> None:
    found = step(lease("a"), record=replace(record("a"), shards=4))
    assert isinstance(found, WaitForRing)
    assert "--journal_shards" in found.reason


def test_a_node_with_the_address_of_another_one_is_told_so() -> None:
    found = step(replace(lease("a"), address="x:8080"), record=record("a"))
    assert found == WaitForRing("a has the address of this node, x:8080: each needs a --ring_address of its own", stuck=True)


def test_a_second_process_of_a_node_that_lives_waits_and_one_after_a_crash_does_not() -> None:
    me, former = lease("x", ring=""), lease("x", run="0")
    crashed, living = Watch(me, 0.0), Watch(me, 0.0)
    for number in range(5):
        crashed.saw(number, number, SeenLeases((former, replace(me, number=number))))
        living.saw(number, number, seen := SeenLeases((replace(former, number=number), replace(me, number=number))))
    assert isinstance(next_step(me, SHARDS, "N", seen, crashed, PLACE), FoundRing)
    waits = next_step(me, SHARDS, "N", seen, living, PLACE)
    reason = "another process is the node x of the ring, and lives: each needs a --ring_node of its own"
    assert waits == WaitForRing(reason, stuck=True)
    for number in range(5, 5 + round(LEASE_SECONDS)):  # it has ended
        living.saw(number, number, SeenLeases((replace(me, number=number),)))
    assert isinstance(next_step(me, SHARDS, "N", seen, living, PLACE), FoundRing)


# --- watching ---------------------------------------------------------------------------------------------------------


class Observer:
    """Looks once a second. `renewing`: nodes that renew their leases meanwhile."""

    def __init__(self, *seen: MemberLease, record: RingRecord | None = None) -> None:
        self.now = 1000.0
        self.watch = Watch(lease("a"), self.now)
        self._number = 1
        self._leases = {each.name: each for each in seen}
        self.record = record
        self.look()

    def look(self, seconds: float = 0.0, renewing: str = "", there: bool = True) -> None:
        for _ in range(round(seconds) or 1):
            self.now += 1.0 if seconds else 0.0
            self._number += 1
            for name in renewing:
                self._leases[name] = replace(self._leases[name], number=self._number)
            if there:
                self.watch.saw(self.now, self.now, SeenLeases(tuple(self._leases.values()), self.record))
            else:
                self.watch.missed()

    def see(self, *leases: MemberLease) -> None:
        """Exactly these, at once."""
        self.watch.saw(self.now, self.now, SeenLeases(leases, self.record))

    def forget(self) -> None:
        self._leases.clear()
        self.record = None


def lost(observer: Observer, names: str = "abc", linked: str = "", away: float = LEASE_SECONDS) -> Verdict:
    return verdict(observer.watch, "a", members(names), {name: 0.0 if name in linked else away for name in names})


def test_a_node_without_a_journal_is_lost_when_its_lease_was_not_renewed_for_as_long_as_it_holds() -> None:
    observer = Observer(lease("b"), lease("c"))
    observer.look(LEASE_SECONDS - 1, renewing="c")
    assert lost(observer) == Verdict()
    observer.look(1, renewing="c")
    assert lost(observer) == Verdict(lost=("b",))
    assert lost(observer, linked="b") == Verdict()  # it is only the store that it does not reach
    assert lost(observer, away=LEASE_SECONDS - 1) == Verdict()  # it may not know yet that it is cut off


def test_a_node_that_another_one_is_linked_with_is_not_lost() -> None:
    observer = Observer(lease("b"), replace(lease("c"), links=("b",)))
    observer.look(LEASE_SECONDS, renewing="c")
    assert lost(observer) == Verdict()


def test_a_node_with_a_journal_or_of_which_nothing_is_known_is_kept() -> None:
    observer = Observer(lease("b", journal=True), lease("c"), lease("d"))
    observer.look(LEASE_SECONDS, renewing="cd")
    assert lost(observer, "abcd") == Verdict(kept=("b",))
    observer = Observer(lease("c"))
    observer.look(LEASE_SECONDS, renewing="c")
    assert lost(observer) == Verdict(kept=("b",))


def test_what_the_record_says_of_a_journal_counts_and_an_impostor_does_not() -> None:
    observer = Observer(lease("b", ring=""), lease("c"), record=record("abc", "b"))
    observer.look(LEASE_SECONDS, renewing="c")
    assert lost(observer) == Verdict(kept=("b",))
    observer = Observer(lease("b", ring=""), lease("c"), record=record("ac"))  # it died before it said that it has joined
    observer.look(LEASE_SECONDS, renewing="c")
    assert lost(observer) == Verdict(lost=("b",))


def test_a_store_that_is_away_declares_nobody_and_the_time_begins_anew_after_that() -> None:
    observer = Observer(lease("b"), lease("c"))
    observer.look(LEASE_SECONDS - 1, renewing="c")
    observer.look(100, there=False)
    assert lost(observer) == Verdict()
    observer.look(LEASE_SECONDS, renewing="c")
    assert lost(observer) == Verdict()
    observer.look(1, renewing="c")
    assert lost(observer) == Verdict(lost=("b",))


def test_an_observer_that_was_paused_itself_declares_nobody() -> None:
    observer = Observer(lease("b"), lease("c"))
    observer.now += 100
    observer.look(1, renewing="c")
    assert lost(observer) == Verdict()


def test_a_store_that_lost_everything_declares_nobody_who_renews() -> None:
    observer = Observer(lease("b"), lease("c"), record=record("abc"))
    observer.look(LEASE_SECONDS - 1, renewing="bc")
    observer.forget()
    observer.look(2)
    assert lost(observer) == Verdict()


def test_more_than_half_are_not_declared_and_those_outside_declare_nobody() -> None:
    observer = Observer(lease("b"), lease("c"))
    observer.look(LEASE_SECONDS)
    assert lost(observer) == Verdict(doubtful=("b", "c"))
    assert lost(observer, linked="c") == Verdict(doubtful=("b",))  # c may be linked with it
    assert lost(observer, "ab") == Verdict(lost=("b",))
    assert lost(observer, "bcd") == Verdict()


# --- a node that was stopped ------------------------------------------------------------------------------------------


def ended(name: str, number: int = 9, **also: Any) -> MemberLease:
    return replace(lease(name, number, **also), ended=True)


def test_a_node_without_a_journal_that_says_its_end_is_lost_once_nobody_is_linked_with_it() -> None:
    observer = Observer(lease("b"), replace(lease("c"), links=("b",)))
    observer.see(ended("b"), replace(lease("c"), links=("b",)))
    assert lost(observer, away=0.1) == Verdict()  # c has not noticed it yet, or has a link to the next process
    observer.see(ended("b"), lease("c", 2))
    assert lost(observer, linked="b") == Verdict()
    assert lost(observer, away=0.1) == Verdict(lost=("b",))
    assert declaration(observer.watch, "b") == "lost/b/b~1/9"


def test_a_node_with_a_journal_that_says_its_end_is_waited_for_and_never_lost() -> None:
    observer = Observer(lease("b", journal=True), lease("c"))
    observer.see(ended("b", journal=True), lease("c", 2))
    assert lost(observer) == Verdict()
    observer = Observer(ended("b", journal=True), lease("c"))
    observer.look(LEASE_SECONDS, renewing="c")
    assert lost(observer) == Verdict(kept=("b",))


def test_a_lease_that_only_vanished_is_no_end() -> None:
    observer = Observer(lease("b"), lease("c"))
    observer.see(lease("c", 2))
    assert lost(observer) == Verdict()


def test_the_end_of_a_process_is_not_that_of_the_next_one_in_whatever_order_both_are_seen() -> None:
    for both in ((ended("b"), lease("b", run="2")), (lease("b", run="2"), ended("b"))):
        observer = Observer(lease("b"), lease("c"))
        observer.see(*both, lease("c", 2))
        assert lost(observer) == Verdict()
        observer.see(lease("c", 3))  # a store that has lost some, and has them again
        observer.see(*both, lease("c", 4))
        assert lost(observer) == Verdict()


def test_the_end_of_one_that_only_looked_for_the_ring_under_the_name_of_a_member_is_not_that_of_the_member() -> None:
    observer = Observer(lease("b"), lease("c"))
    observer.see(lease("b"), lease("b", ring="", run="2"), lease("c", 2))
    observer.see(lease("b"), ended("b", ring="", run="2"), lease("c", 3))
    assert lost(observer) == Verdict()


def test_those_that_say_their_end_are_lost_also_where_few_are_left_and_others_are_in_doubt_then() -> None:
    observer = Observer(lease("b"), lease("c"))
    observer.see(ended("b"), ended("c"))
    assert lost(observer, away=0.1) == Verdict(lost=("b", "c"))
    observer = Observer(lease("b"), lease("c"), lease("d"))
    observer.look(LEASE_SECONDS, renewing="b")
    observer.see(ended("b", 99), lease("c"), lease("d"))
    assert lost(observer, "abcd") == Verdict(lost=("b",), doubtful=("c", "d"))


def test_whoever_looks_for_a_ring_does_not_wait_for_processes_that_said_their_end() -> None:
    assert isinstance(step(ended("a"), ended("b"), record=record("ab")), FoundRing)
    assert isinstance(step(ended("a", ring=""), record=record("a", founder="a~1")), FoundRing)
    assert isinstance(step(replace(ended("a"), address="x:8080"), record=record("a")), FoundRing)
    waits = step(ended("a", journal=True), record=record("a", "a"))
    assert isinstance(waits, WaitForRing)
    assert "a had a journal" in waits.reason
    found = step(ended("a"), lease("b"), record=record("ab"))
    assert isinstance(found, JoinRing)
    assert found.members == tuple(members("b"))


def test_the_process_before_is_no_twin_once_it_says_its_end() -> None:
    me = lease("x", ring="")
    watch = Watch(me, 0.0)
    for number in range(4):
        watch.saw(number, number, SeenLeases((lease("x", number, run="0"), replace(me, number=number))))
    assert watch.twin()
    watch.saw(4, 4, SeenLeases((ended("x", 4, run="0"), replace(me, number=4))))
    assert not watch.twin()


# --- a node that may be declared --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "linked", "journal", "paused"),
    [
        ("ab", "", False, True),
        ("abc", "", False, True),
        ("abcd", "b", False, True),
        ("abc", "b", False, False),
        ("ab", "b", False, False),
        ("a", "", False, False),
        ("ab", "", True, False),
        ("bc", "", False, False),
    ],
)
def test_a_node_without_its_lease_and_with_half_of_the_ring_at_the_most_is_paused(
    names: str, linked: str, journal: bool, paused: bool
) -> None:
    observer, me = Observer(lease("a")), lease("a", journal=journal)
    observer.look(4, there=False)
    for seconds, expected in ((PAUSE_SECONDS - 1, False), (PAUSE_SECONDS, paused)):
        assert bool(pause(observer.watch, me, members(names), linked, 1000.0 + seconds)) is expected
    observer.look(1)
    assert pause(observer.watch, me, members(names), linked, observer.now) == ""


def test_observers_that_saw_the_same_make_the_same_change_and_the_node_knows_that_it_is_meant() -> None:
    one, other = Observer(lease("b", 7)), Observer(lease("b", 3), lease("b", 7))
    change = declaration(one.watch, "b")
    assert change == declaration(other.watch, "b")
    assert declared(["x", change], lease("b")) == {change}
    assert declared(["x", change], lease("b", run="2")) == {change}  # the next process of the node
    assert declared(["x", change], lease("a")) == set()


def test_the_record_has_all_members_and_those_that_are_about_to_join() -> None:
    seen = SeenLeases((lease("a"), lease("d", ring="")), record("abdz"), "1")
    observer = Observer(lease("b", journal=True), lease("d", ring=""))
    wanted = record_of("N", first_table(members("ab"), SHARDS), seen, observer.watch, lease("a"))
    assert wanted == record("abd", "b")
    anew = record_of("N", first_table(members("ab"), SHARDS), SeenLeases(()), observer.watch, lease("a", journal=True))
    assert anew == RingRecord("N", SHARDS, "", {"a": True, "b": True})
