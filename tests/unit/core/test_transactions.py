"""The transaction ledger: staging limits, commits and dropped batches."""

import pytest

from ropewalk.core.transactions import MIN_COST_BYTES, TransactionLedger, check_name, encode_sequence
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
    dropped: list[tuple[str, int]] = []
    for each in pieces:
        dropped += ledger.make_room(app, batch, each, now)
        assert ledger.place(app, batch, each, now) == (True, [])
    return dropped


def commit(ledger: TransactionLedger, app: str, batch: int, winners: dict[int, int]) -> Decision:
    decision = ledger.decide(app, batch, winners, {})
    ledger.finish(app)
    return decision


def test_valid_name_is_accepted(subtests: pytest.Subtests) -> None:
    rows: list[str] = ["a", "A-z_0.9:x", "x" * 128, ".."]
    for name in rows:
        with subtests.test(name=name):
            assert check_name(name, "app") == name


def test_invalid_name_is_refused(subtests: pytest.Subtests) -> None:
    rows: list[str] = ["", "x" * 129, "a/b", "a b", "é", "a\n", "a\0"]
    for name in rows:
        with subtests.test(name=name), pytest.raises(BadRequest):
            check_name(name, "app")


def test_sequences_grow_with_batch_and_row_and_fit_into_63_bits() -> None:
    assert encode_sequence(0, 5) < encode_sequence(1, 0) < encode_sequence(1, 1) < encode_sequence(2**31 - 1, 2**32 - 1) < 2**63


def test_commit_selects_the_pieces_of_the_winners_in_order(ledger: TransactionLedger) -> None:
    stage(ledger, "app", 1, piece(1, 0, 0), piece(0, 3, 0), piece(0, 7, 0), piece(0, 7, 1))
    assert ledger.decide("app", 1, {0: 7, 1: 0}, {}).pieces == (piece(0, 7, 0), piece(0, 7, 1), piece(1, 0, 0))


def test_commit_of_missing_pieces_names_them_and_decides_nothing(ledger: TransactionLedger) -> None:
    stage(ledger, "app", 1, piece(0, 1, 0))
    with pytest.raises(Conflict) as refusal:
        ledger.decide("app", 1, {0: 2, 1: 0}, {})
    assert refusal.value.missing == [{"part": 0, "attempt": 2}, {"part": 1, "attempt": 0}]
    assert ledger.decided("app") is None


def test_commit_may_give_the_number_of_pieces(ledger: TransactionLedger) -> None:
    stage(ledger, "app", 1, piece(0, 1, 0))
    with pytest.raises(Conflict):
        ledger.decide("app", 1, {0: 1}, {0: 2})
    assert ledger.decide("app", 1, {0: 1, 1: 0}, {0: 1, 1: 0}).pieces == (piece(0, 1, 0),)


def test_empty_batch_can_be_committed(ledger: TransactionLedger) -> None:
    assert commit(ledger, "app", 4, {}).pieces == ()
    assert ledger.last("app") == 4


def test_decided_batch_and_those_before_it_are_settled(ledger: TransactionLedger) -> None:
    stage(ledger, "app", 5, piece(0, 0, 0))
    ledger.decide("app", 5, {0: 0}, {})
    assert [ledger.is_finished("app", batch) for batch in (4, 5, 6)] == [True, True, False]
    assert ledger.unfinished() == ["app"]
    assert ledger.finish("app") == 5
    assert [ledger.is_finished("app", batch) for batch in (4, 5, 6)] == [True, True, False]
    assert ledger.unfinished() == []
    assert ledger.cost == 0


def test_decision_that_was_not_stored_can_be_repeated(ledger: TransactionLedger) -> None:
    stage(ledger, "app", 5, piece(0, 0, 0), piece(0, 1, 0))
    ledger.decide("app", 5, {0: 0}, {})
    ledger.undecide("app")
    assert ledger.decide("app", 5, {0: 1}, {}).pieces == (piece(0, 1, 0),)


def test_pieces_of_an_attempt_must_be_in_order(ledger: TransactionLedger) -> None:
    with pytest.raises(Conflict):
        ledger.make_room("app", 1, piece(0, 0, 1), 0.0)


def test_restarted_attempt_discards_its_former_pieces(ledger: TransactionLedger) -> None:
    """A restarted application numbers its attempts from 0 again, and they may have other pieces."""
    stage(ledger, "app", 1, piece(0, 0, 0), piece(0, 0, 1), piece(0, 0, 2))
    assert ledger.place("app", 1, piece(0, 0, 0, crc=9), 0.0) == (True, [piece(0, 0, 0), piece(0, 0, 1), piece(0, 0, 2)])
    assert ledger.decide("app", 1, {0: 0}, {}).pieces == (piece(0, 0, 0, crc=9),)
    assert ledger.cost == SIZE


def test_repeated_piece_is_not_discarded(ledger: TransactionLedger) -> None:
    stage(ledger, "app", 1, piece(0, 0, 0))
    assert ledger.place("app", 1, piece(0, 0, 0), 0.0) == (True, [])


def test_late_piece_is_discarded_and_a_selected_one_kept(ledger: TransactionLedger) -> None:
    stage(ledger, "app", 1, piece(0, 0, 0))
    ledger.decide("app", 1, {0: 0}, {})
    assert ledger.place("app", 1, piece(0, 0, 0, crc=9), 0.0) == (False, [piece(0, 0, 0, crc=9)])
    assert ledger.place("app", 1, piece(0, 0, 0), 0.0) == (False, [])


def test_damaged_piece_discards_its_attempt(ledger: TransactionLedger) -> None:
    stage(ledger, "app", 1, piece(0, 0, 0), piece(0, 0, 1), piece(0, 1, 0))
    ledger.mark_broken("app", 1, [piece(0, 0, 1)])
    with pytest.raises(Conflict):
        ledger.decide("app", 1, {0: 0}, {})
    assert ledger.cost == SIZE
    assert ledger.decide("app", 1, {0: 1}, {}).pieces == (piece(0, 1, 0),)


# --- bounds -------------------------------------------------------------------------------------------------------------


def test_oldest_batch_of_an_application_is_dropped_for_a_newer_one(ledger: TransactionLedger) -> None:
    stage(ledger, "app", 1, piece(0, 0, 0))
    stage(ledger, "app", 2, piece(0, 0, 0))
    assert stage(ledger, "app", 3, piece(0, 0, 0)) == [("app", 1)]
    assert ledger.cost == 2 * SIZE
    with pytest.raises(Conflict):
        ledger.decide("app", 1, {0: 0}, {})


def test_staged_bytes_of_an_application_are_limited(ledger: TransactionLedger) -> None:
    stage(ledger, "app", 1, *(piece(0, 0, seq) for seq in range(6)))
    with pytest.raises(LimitReached):
        ledger.make_room("app", 1, piece(0, 0, 6), 0.0)


def test_only_idle_batches_are_dropped_when_staging_is_full(ledger: TransactionLedger) -> None:
    stage(ledger, "old", 1, *(piece(0, 0, seq) for seq in range(5)), now=0.0)
    stage(ledger, "new", 1, *(piece(0, 0, seq) for seq in range(5)), now=50.0)
    with pytest.raises(LimitReached):
        ledger.make_room("app", 1, piece(0, 0, 0), 59.0)
    assert stage(ledger, "app", 1, piece(0, 0, 0), now=60.0) == [("old", 1)]


def test_decided_batch_is_never_dropped(ledger: TransactionLedger) -> None:
    stage(ledger, "old", 1, *(piece(0, 0, seq) for seq in range(5)))
    stage(ledger, "new", 1, *(piece(0, 0, seq) for seq in range(5)), now=50.0)
    ledger.decide("old", 1, {0: 0}, {})
    with pytest.raises(LimitReached):
        ledger.make_room("app", 1, piece(0, 0, 0), 60.0)


def test_tiny_piece_has_a_minimum_cost(ledger: TransactionLedger) -> None:
    tiny = StagedPiece(0, 0, 0, 1, 0)
    stage(ledger, "app", 1, tiny)
    assert ledger.cost == MIN_COST_BYTES


def test_number_of_applications_is_limited(ledger: TransactionLedger) -> None:
    for app in "abc":
        commit(ledger, app, 0, {})
    with pytest.raises(LimitReached):
        ledger.decide("d", 0, {}, {})
    with pytest.raises(LimitReached):
        ledger.make_room("d", 0, piece(0, 0, 0), 0.0)


# --- after a restart ----------------------------------------------------------------------------------------------------


def test_stored_pieces_are_restored_up_to_a_hole(ledger: TransactionLedger) -> None:
    stored = [piece(0, 0, 1), piece(0, 0, 0), piece(1, 0, 1)]
    assert ledger.restore(AppRecord("app", 3, None, {4: stored}), 0.0) == [(4, [piece(1, 0, 1)])]
    assert ledger.last("app") == 3
    assert ledger.decide("app", 4, {0: 0}, {}).pieces == (piece(0, 0, 0), piece(0, 0, 1))


def test_stored_decision_is_restored(ledger: TransactionLedger) -> None:
    decision = Decision(4, (piece(0, 0, 0),))
    ledger.restore(AppRecord("app", 3, decision, {4: [piece(0, 0, 0)]}), 0.0)
    assert ledger.unfinished() == ["app"]
    assert ledger.decided("app") == decision
    assert ledger.finish("app") == 4
    assert ledger.cost == 0
