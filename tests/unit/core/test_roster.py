"""Edge cases of the roster that the backend suite cannot reach: refused joins, colliding adoptions, leftover state."""

import pytest

from ropewalk.core.roster import MAX_EXPIRED_AT_ONCE, Roster
from ropewalk.model.errors import LimitReached
from ropewalk.model.presence import Member, PresenceEvent

BO, CY, DI = Member("bo"), Member("cy"), Member("di")


def ids(roster: Roster, stream: str = "a") -> list[str]:
    return [member.id for member in roster.page(stream, "", 100).members]


def test_refused_change_of_member_keeps_the_first() -> None:
    roster = Roster(max_members=2)
    roster.join("a", "one", BO)
    roster.join("a", "two", BO)
    roster.join("a", "three", CY)
    with pytest.raises(LimitReached):
        roster.join("a", "one", DI)
    assert ids(roster) == ["bo", "cy"]
    assert roster.leave("a", "two") == []
    assert roster.leave("a", "one") == [PresenceEvent("leave", "a", BO)]


def test_change_of_member_may_reuse_the_place_it_frees() -> None:
    roster = Roster(max_members=1)
    roster.join("a", "one", BO)
    assert roster.join("a", "one", CY) == [PresenceEvent("leave", "a", BO), PresenceEvent("join", "a", CY)]
    assert ids(roster) == ["cy"]


def test_adopted_place_of_another_member_ends_at_the_next_expiry() -> None:
    roster = Roster()
    roster.join("a", "old", BO)
    roster.join("b", "old", BO)
    roster.join("a", "new", CY)
    roster.adopt("old", "new")
    assert roster.expire(1.0) == [PresenceEvent("leave", "a", BO)]
    assert (ids(roster, "a"), ids(roster, "b")) == (["cy"], ["bo"])
    assert roster.leave("b", "new") == [PresenceEvent("leave", "b", BO)]


def test_place_taken_by_both_sessions_is_held_once() -> None:
    roster = Roster()
    roster.join("a", "old", BO)
    roster.detach("old", 5.0)
    roster.join("a", "new", BO)
    roster.adopt("old", "new")
    assert roster.expire(10.0) == []
    assert roster.leave("a", "new") == [PresenceEvent("leave", "a", BO)]


def test_session_that_adopts_itself_is_attached_again() -> None:
    roster = Roster()
    roster.join("a", "sid", BO)
    roster.detach("sid", 5.0)
    roster.adopt("sid", "sid")
    assert roster.expire(10.0) == []
    assert ids(roster) == ["bo"]


def test_join_after_the_connection_was_lost_expires_with_it() -> None:
    roster = Roster()
    roster.join("a", "sid", BO)
    roster.detach("sid", 5.0)
    roster.join("b", "sid", CY)
    assert roster.expire(5.0) == [PresenceEvent("leave", "a", BO), PresenceEvent("leave", "b", CY)]


def test_detached_session_stays_detached_when_its_member_changes() -> None:
    roster = Roster()
    roster.join("a", "sid", BO)
    roster.detach("sid", 5.0)
    roster.join("a", "sid", CY)
    assert roster.expire(5.0) == [PresenceEvent("leave", "a", CY)]


def test_mass_departure_expires_in_bounded_batches() -> None:
    roster = Roster(max_members=MAX_EXPIRED_AT_ONCE + 1)
    for number in range(MAX_EXPIRED_AT_ONCE + 1):
        roster.join("a", f"sid{number}", Member(f"id{number}"))
        roster.detach(f"sid{number}", 1.0)
    assert len(roster.expire(1.0)) == MAX_EXPIRED_AT_ONCE
    assert roster.members == 1
    assert len(roster.expire(1.0)) == 1


def test_empty_roster_keeps_no_state() -> None:
    roster = Roster()
    roster.join("a", "one", BO)
    roster.join("a", "two", CY)
    roster.detach("two", 1.0)
    roster.leave("a", "one")
    roster.expire(1.0)
    assert (roster.members, roster._sets, roster._held, len(roster._detached)) == (0, {}, {}, 0)
