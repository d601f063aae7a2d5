"""The ledger's decisions: what may be staged, what a commit chooses, and what gives way."""

import pytest

from ropewalk.core.transactions import LEAST_COST, TransactionLedger, checked_name, sequence_of
from ropewalk.model.errors import BadRequest, Conflict, LimitReached
from ropewalk.model.transactions import AppRecord, Decision, StagedPiece, StagingLimits

SIZE = 10_000
LIMITS = StagingLimits(max_bytes=10 * SIZE, max_app_bytes=6 * SIZE, max_open_batches=2, max_apps=3, idle_timeout=60.0)


def piece(part: int, attempt: int, seq: int, crc: int = 0) -> StagedPiece:
    return StagedPiece(part, attempt, seq, SIZE, crc)


@pytest.fixture
def ledger() -> TransactionLedger:
    return TransactionLedger(LIMITS)


def stage(ledger: TransactionLedger, app: str, batch: int, *pieces: StagedPiece, now: float = 0.0) -> list[tuple[str, int]]:
    given_up: list[tuple[str, int]] = []
    for each in pieces:
        given_up += ledger.make_room(app, batch, each, now)
        assert ledger.place(app, batch, each, now) == (True, [])
    return given_up


def commit(ledger: TransactionLedger, app: str, batch: int, winners: dict[int, int]) -> Decision:
    decision = ledger.decide(app, batch, winners, {})
    ledger.finish(app)
    return decision


@pytest.mark.parametrize("name", ["a", "A-z_0.9:x", "x" * 128, ".."])
def test_a_good_name_is_taken(name: str) -> None:
    assert checked_name(name, "app") == name


@pytest.mark.parametrize("name", ["", "x" * 129, "a/b", "a b", "é", "a\n", "a\0"])
def test_another_name_is_refused(name: str) -> None:
    with pytest.raises(BadRequest):
        checked_name(name, "app")


def test_sequences_grow_with_batch_and_row_and_fit_into_63_bits() -> None:
    assert sequence_of(0, 5) < sequence_of(1, 0) < sequence_of(1, 1) < sequence_of(2**31 - 1, 2**32 - 1) < 2**63


def test_a_commit_chooses_the_pieces_of_the_winners_in_order(ledger: TransactionLedger) -> None:
    stage(ledger, "app", 1, piece(1, 0, 0), piece(0, 3, 0), piece(0, 7, 0), piece(0, 7, 1))
    assert ledger.decide("app", 1, {0: 7, 1: 0}, {}).pieces == (piece(0, 7, 0), piece(0, 7, 1), piece(1, 0, 0))


def test_a_commit_of_what_is_not_staged_says_what_is_missing_and_decides_nothing(ledger: TransactionLedger) -> None:
    stage(ledger, "app", 1, piece(0, 1, 0))
    with pytest.raises(Conflict) as refusal:
        ledger.decide("app", 1, {0: 2, 1: 0}, {})
    assert refusal.value.missing == [{"part": 0, "attempt": 2}, {"part": 1, "attempt": 0}]
    assert ledger.decided("app") is None


def test_a_commit_may_say_how_many_pieces_there_are(ledger: TransactionLedger) -> None:
    stage(ledger, "app", 1, piece(0, 1, 0))
    with pytest.raises(Conflict):
        ledger.decide("app", 1, {0: 1}, {0: 2})
    assert ledger.decide("app", 1, {0: 1, 1: 0}, {0: 1, 1: 0}).pieces == (piece(0, 1, 0),)


def test_an_empty_batch_can_be_committed(ledger: TransactionLedger) -> None:
    assert commit(ledger, "app", 4, {}).pieces == ()
    assert ledger.last("app") == 4


def test_once_a_batch_is_decided_it_and_what_is_below_it_is_settled(ledger: TransactionLedger) -> None:
    stage(ledger, "app", 5, piece(0, 0, 0))
    ledger.decide("app", 5, {0: 0}, {})
    assert [ledger.settled("app", batch) for batch in (4, 5, 6)] == [True, True, False]
    assert ledger.unfinished() == ["app"]
    assert ledger.finish("app") == 5
    assert [ledger.settled("app", batch) for batch in (4, 5, 6)] == [True, True, False]
    assert ledger.unfinished() == []
    assert ledger.cost == 0


def test_a_decision_that_did_not_become_durable_can_be_made_again(ledger: TransactionLedger) -> None:
    stage(ledger, "app", 5, piece(0, 0, 0), piece(0, 1, 0))
    ledger.decide("app", 5, {0: 0}, {})
    ledger.undecide("app")
    assert ledger.decide("app", 5, {0: 1}, {}).pieces == (piece(0, 1, 0),)


def test_pieces_of_an_attempt_come_in_order(ledger: TransactionLedger) -> None:
    with pytest.raises(Conflict):
        ledger.make_room("app", 1, piece(0, 0, 1), 0.0)


def test_an_attempt_that_begins_anew_forgets_the_pieces_it_had(ledger: TransactionLedger) -> None:
    """As after a restart of the application, whose attempts are numbered from 0 again and may have other pieces."""
    stage(ledger, "app", 1, piece(0, 0, 0), piece(0, 0, 1), piece(0, 0, 2))
    assert ledger.place("app", 1, piece(0, 0, 0, crc=9), 0.0) == (True, [piece(0, 0, 0), piece(0, 0, 1), piece(0, 0, 2)])
    assert ledger.decide("app", 1, {0: 0}, {}).pieces == (piece(0, 0, 0, crc=9),)
    assert ledger.cost == SIZE


def test_the_same_piece_again_is_not_thrown_away(ledger: TransactionLedger) -> None:
    stage(ledger, "app", 1, piece(0, 0, 0))
    assert ledger.place("app", 1, piece(0, 0, 0), 0.0) == (True, [])


def test_a_piece_that_comes_too_late_does_not_count_and_a_chosen_one_stays(ledger: TransactionLedger) -> None:
    stage(ledger, "app", 1, piece(0, 0, 0))
    ledger.decide("app", 1, {0: 0}, {})
    assert ledger.place("app", 1, piece(0, 0, 0, crc=9), 0.0) == (False, [piece(0, 0, 0, crc=9)])
    assert ledger.place("app", 1, piece(0, 0, 0), 0.0) == (False, [])


def test_a_damaged_piece_costs_its_attempt(ledger: TransactionLedger) -> None:
    stage(ledger, "app", 1, piece(0, 0, 0), piece(0, 0, 1), piece(0, 1, 0))
    ledger.lose("app", 1, [piece(0, 0, 1)])
    with pytest.raises(Conflict):
        ledger.decide("app", 1, {0: 0}, {})
    assert ledger.cost == SIZE
    assert ledger.decide("app", 1, {0: 1}, {}).pieces == (piece(0, 1, 0),)


# --- bounds -------------------------------------------------------------------------------------------------------------


def test_the_oldest_batches_of_an_application_give_way_to_a_newer_one(ledger: TransactionLedger) -> None:
    stage(ledger, "app", 1, piece(0, 0, 0))
    stage(ledger, "app", 2, piece(0, 0, 0))
    assert stage(ledger, "app", 3, piece(0, 0, 0)) == [("app", 1)]
    assert ledger.cost == 2 * SIZE
    with pytest.raises(Conflict):
        ledger.decide("app", 1, {0: 0}, {})


def test_an_application_has_its_share_and_no_more(ledger: TransactionLedger) -> None:
    stage(ledger, "app", 1, *(piece(0, 0, seq) for seq in range(6)))
    with pytest.raises(LimitReached):
        ledger.make_room("app", 1, piece(0, 0, 6), 0.0)


def test_when_all_is_full_only_what_nobody_touched_for_long_gives_way(ledger: TransactionLedger) -> None:
    stage(ledger, "old", 1, *(piece(0, 0, seq) for seq in range(5)), now=0.0)
    stage(ledger, "new", 1, *(piece(0, 0, seq) for seq in range(5)), now=50.0)
    with pytest.raises(LimitReached):
        ledger.make_room("app", 1, piece(0, 0, 0), 59.0)
    assert stage(ledger, "app", 1, piece(0, 0, 0), now=60.0) == [("old", 1)]


def test_a_decided_batch_never_gives_way(ledger: TransactionLedger) -> None:
    stage(ledger, "old", 1, *(piece(0, 0, seq) for seq in range(5)))
    stage(ledger, "new", 1, *(piece(0, 0, seq) for seq in range(5)), now=50.0)
    ledger.decide("old", 1, {0: 0}, {})
    with pytest.raises(LimitReached):
        ledger.make_room("app", 1, piece(0, 0, 0), 60.0)


def test_tiny_pieces_count_as_much_as_they_take(ledger: TransactionLedger) -> None:
    tiny = StagedPiece(0, 0, 0, 1, 0)
    stage(ledger, "app", 1, tiny)
    assert ledger.cost == LEAST_COST


def test_the_number_of_applications_is_bounded(ledger: TransactionLedger) -> None:
    for app in "abc":
        commit(ledger, app, 0, {})
    with pytest.raises(LimitReached):
        ledger.decide("d", 0, {}, {})
    with pytest.raises(LimitReached):
        ledger.make_room("d", 0, piece(0, 0, 0), 0.0)


# --- after a restart ----------------------------------------------------------------------------------------------------


def test_what_was_kept_is_taken_over_except_pieces_behind_a_hole(ledger: TransactionLedger) -> None:
    kept = [piece(0, 0, 1), piece(0, 0, 0), piece(1, 0, 1)]
    assert ledger.restore(AppRecord("app", 3, None, {4: kept}), 0.0) == [(4, [piece(1, 0, 1)])]
    assert ledger.last("app") == 3
    assert ledger.decide("app", 4, {0: 0}, {}).pieces == (piece(0, 0, 0), piece(0, 0, 1))


def test_a_decision_is_taken_over(ledger: TransactionLedger) -> None:
    decision = Decision(4, (piece(0, 0, 0),))
    ledger.restore(AppRecord("app", 3, decision, {4: [piece(0, 0, 0)]}), 0.0)
    assert ledger.unfinished() == ["app"]
    assert ledger.decided("app") == decision
    assert ledger.finish("app") == 4
    assert ledger.cost == 0
