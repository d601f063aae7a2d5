"""The simulation holds, follows from its seed, and finds what is broken on purpose."""

import asyncio
import secrets
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import pytest

from ropewalk.adapters.backends.workers.presence import SharedPresence
from ropewalk.adapters.backends.workers.sessions import SharedSessions
from ropewalk.adapters.backends.workers.store import NodeSessions
from ropewalk.core.cursor import Cursor, Step
from ropewalk.core.idempotency import Registrations
from ropewalk.engine.feed import FeedReader
from ropewalk.engine.hub import Hub
from ropewalk.engine.persistent_presence import PersistentPresence
from ropewalk.engine.session_leases import LeasedSessionKeeper
from ropewalk.model.messages import Position
from ropewalk.model.sessions import Renewal, SessionSnapshot, SessionTaken
from ropewalk.testing.shared_store import LosableStore
from ropewalk.testing.simulation.ledger import AnomalyKind
from ropewalk.testing.simulation.shrinking import shortest
from ropewalk.testing.simulation.steps import ACTIONS, simulate
from ropewalk.testing.simulation.world import FAULTS, Plan

STEPS = 5_000
"""Four seeds of these are 20,000 steps in every run of the tests."""


RARE = {"store_away", "store_lost"}
"""Some runs are too short for these."""


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_the_contract_holds_whatever_the_network_does(seed: int) -> None:
    report = simulate(Plan(seed, STEPS))
    assert (report.anomaly, list(report.history)) == ("", [])
    assert set(report.actions) >= set(ACTIONS) - RARE
    assert min(getattr(report.faults, fault) for fault in FAULTS) > 0
    assert min(report.restored, report.filled, report.gaps) > 0
    assert min(report.taken_over, report.sessions_over, report.presence_events) > 0


def test_everything_follows_from_the_seed() -> None:
    first, again, other = (simulate(Plan(seed, 1_000)) for seed in (9, 9, 10))
    assert first == again
    assert (first.registered, first.delivered) != (other.registered, other.delivered)


def test_names_that_are_made_up_follow_from_the_seed_too() -> None:
    def names(seed: int) -> list[str]:
        made_up: list[str] = []
        simulate(Plan(seed, 3), progress=lambda steps: made_up.append(secrets.token_urlsafe(16)))
        return made_up

    assert names(9) == names(9) != names(10)


@pytest.mark.parametrize(("nodes", "clients", "streams"), [(1, 1, 1), (1, 12, 1), (5, 3, 2)])
def test_any_size_of_world_will_do(nodes: int, clients: int, streams: int) -> None:
    assert simulate(Plan(5, 1_000, nodes, clients, streams)).anomaly == ""


# --- broken on purpose ----------------------------------------------------------------------------------------------------


def kinds_found(seeds: Sequence[int] = range(5), steps: int = 2_500, without: Iterable[str] = ()) -> set[AnomalyKind | None]:
    return {simulate(Plan(seed, steps, without=frozenset(without))).kind for seed in seeds}


def is_found(kind: AnomalyKind, seeds: Sequence[int] = range(20), steps: int = 2_500) -> bool:
    return any(simulate(Plan(seed, steps)).kind is kind for seed in seeds)


def often(monkeypatch: pytest.MonkeyPatch, action: str) -> None:
    monkeypatch.setitem(ACTIONS, action, (0.5, ACTIONS[action][1]))


def test_a_cursor_that_lets_everything_through_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cursor, "take", lambda self, epoch, offset: Step.NEXT)
    assert kinds_found() <= {AnomalyKind.REPEATED, AnomalyKind.REORDERED, AnomalyKind.SILENT_GAP}


def test_a_cursor_that_takes_jumps_for_the_next_message_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    take = Cursor.take

    def leap(self: Cursor, epoch: str, offset: int) -> Step:
        step = take(self, epoch, offset)
        if step is Step.JUMP:
            self.move(epoch, offset)
            return Step.NEXT
        return step

    monkeypatch.setattr(Cursor, "take", leap)
    assert AnomalyKind.SILENT_GAP in kinds_found()


def test_a_fill_that_brings_nothing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def pretend(self: FeedReader, audience: Any, backlog: Any, answer: Any) -> None:
        audience.cursor.move(answer.epoch, answer.tip)

    monkeypatch.setattr(FeedReader, "_give", pretend)
    assert kinds_found() <= {AnomalyKind.SILENT_GAP, AnomalyKind.LOST}


def test_a_lost_message_of_a_quiet_stream_that_nobody_looks_for_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def do_nothing(self: FeedReader) -> None:
        pass

    monkeypatch.setattr(FeedReader, "upkeep", do_nothing)
    # Where others join, they bring everybody up to date.
    without = ("cut", "kick", "node_dies", "slow_down", "store_away", "store_lost", "unsubscribe", "vanish")
    assert AnomalyKind.LOST in kinds_found(range(8), without=without)


def test_a_join_that_goes_on_before_the_others_have_come_as_far_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def do_nothing(self: FeedReader, answer: Any) -> None:
        pass

    monkeypatch.setattr(FeedReader, "reach", do_nothing)
    assert kinds_found() & {AnomalyKind.REPEATED, AnomalyKind.REORDERED, AnomalyKind.SILENT_GAP}


def test_a_join_that_does_not_wait_for_the_feed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def do_nothing(self: FeedReader, streams: Any) -> list[Position]:
        return [Position("", 0) for _ in streams]

    monkeypatch.setattr(FeedReader, "follow", do_nothing)
    assert AnomalyKind.SILENT_GAP in kinds_found()


def test_a_gap_that_is_not_said_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Hub, "say_gap", lambda self, audience, gap, after: None)
    assert AnomalyKind.SILENT_GAP in kinds_found()


def test_a_store_that_does_not_recognise_a_repetition_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Registrations, "find", lambda self, publication, now: None)
    assert kinds_found() == {AnomalyKind.REGISTERED_TWICE}


def test_a_receipt_with_a_wrong_position_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    find = Registrations.find

    def off_by_one(self: Registrations, publication: Any, now: float) -> Position | None:
        first = find(self, publication, now)
        return Position(first.epoch, first.offset + 1) if first else None

    monkeypatch.setattr(Registrations, "find", off_by_one)
    assert kinds_found() == {AnomalyKind.WRONG_RECEIPT}


def test_a_remote_disconnect_that_forgets_those_who_are_away_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def forget_nobody(self: SharedSessions, ids: str) -> list[tuple[str, SessionSnapshot]]:
        return []

    monkeypatch.setattr(SharedSessions, "revoke", forget_nobody)
    assert is_found(AnomalyKind.KICKED_SESSION_BACK)


def test_a_remote_disconnect_that_a_node_missed_and_the_store_does_not_repeat_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    tell = SharedSessions._tell

    def tell_only_who_was_taken(self: SharedSessions, node: str, order: SessionTaken) -> None:
        if not order.revoked:
            tell(self, node, order)

    monkeypatch.setattr(SharedSessions, "_tell", tell_only_who_was_taken)
    # Whatever else happens to a session brings it to the store, which knows that it was revoked.
    quiet = ("cut", "vanish", "node_dies", "slow_down", "unsubscribe", "join", "leave")
    assert AnomalyKind.KICKED_SESSION_BACK in kinds_found(without=quiet)


# --- leases that are broken on purpose ------------------------------------------------------------------------------------


def test_a_lease_that_never_ends_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LosableStore, "end_lease", lambda self, node: None)
    assert is_found(AnomalyKind.GHOST_MEMBER)


def test_a_presence_set_that_ignores_the_end_of_a_lease_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SharedPresence, "node_died", lambda self, node: None)
    assert is_found(AnomalyKind.GHOST_MEMBER)


def test_an_event_that_dies_with_its_node_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    tell = SharedPresence.tell
    told = []

    def tell_most(self: SharedPresence, events: list[Any]) -> list[Any]:
        told.extend(events)
        return events if events and len(told) % 10 == 0 else tell(self, events)

    monkeypatch.setattr(SharedPresence, "tell", tell_most)
    assert is_found(AnomalyKind.GHOST_MEMBER)


def test_a_node_that_does_not_join_its_members_again_after_its_lease_ended_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PersistentPresence, "settle", lambda self, session, stream: None)
    assert is_found(AnomalyKind.MISSING_MEMBER)


def test_a_leave_that_nobody_repeats_after_an_outage_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    settle = PersistentPresence.settle

    def joins_only(self: PersistentPresence, session: Any, stream: str) -> None:
        def soon() -> None:  # by then the session knows whether it is a member
            if stream in (session.members or {}):
                settle(self, session, stream)

        asyncio.get_running_loop().call_soon(soon)

    monkeypatch.setattr(PersistentPresence, "settle", joins_only)
    often(monkeypatch, "store_away")
    assert is_found(AnomalyKind.GHOST_MEMBER)


@pytest.mark.parametrize("action", ["store_away", "store_lost"])
def test_the_contract_holds_whatever_the_engine_does(monkeypatch: pytest.MonkeyPatch, action: str) -> None:
    often(monkeypatch, action)
    for seed in (1, 2):
        report = simulate(Plan(seed, 3_000))
        assert (report.anomaly, list(report.history)) == ("", [])
        assert report.actions[action] > 5


def test_an_epoch_that_a_store_without_its_data_uses_again_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def lose_all_but_epochs(self: LosableStore) -> None:
        epochs = {stream: log.epoch for stream, log in self.memory._table.logs.items()}
        await lose(self)
        for stream, epoch in epochs.items():
            self.memory._table._open(stream, epoch)

    lose = LosableStore.lose
    monkeypatch.setattr(LosableStore, "lose", lose_all_but_epochs)
    often(monkeypatch, "store_lost")
    assert kinds_found(range(3)) == {AnomalyKind.REUSED_POSITION}


def test_sessions_that_are_not_written_while_they_live_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LeasedSessionKeeper, "changed", lambda self, session: None)
    assert is_found(AnomalyKind.LOST_SESSION)


def test_a_node_that_ignores_that_a_session_was_taken_over_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LeasedSessionKeeper, "obey", lambda self, order: 0)
    assert is_found(AnomalyKind.SESSION_TWICE)


def test_a_lost_order_that_no_renewal_repeats_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def say_nothing(self: NodeSessions, ttl: float, heard: Any) -> Renewal:
        return Renewal(self._store.renew(self._node, ttl, heard).lease)

    monkeypatch.setattr(NodeSessions, "renew", say_nothing)
    assert is_found(AnomalyKind.SESSION_TWICE)


def test_a_session_that_left_and_is_not_written_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def do_nothing(self: LeasedSessionKeeper, session: Any) -> None:
        pass

    monkeypatch.setattr(LeasedSessionKeeper, "_leave", do_nothing)
    assert is_found(AnomalyKind.GHOST_SESSION)


def test_an_expired_session_that_is_given_out_again_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def give_again(self: SharedSessions, limit: int) -> list[tuple[str, SessionSnapshot]]:
        return [(sid, msgspec.msgpack.decode(data, type=SessionSnapshot)) for sid, data in list(self._over)[:limit]]

    monkeypatch.setattr(SharedSessions, "expired", give_again)
    assert is_found(AnomalyKind.ENDED_TWICE)


def test_a_session_that_dies_with_the_node_that_has_just_taken_it_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    take = SharedSessions.take

    def take_away(self: SharedSessions, node: str, sid: str, successor: str) -> SessionSnapshot | None:
        return take(self, node, sid, "")

    monkeypatch.setattr(SharedSessions, "take", take_away)
    assert is_found(AnomalyKind.LOST_SESSION)


def test_a_failure_is_told_with_a_short_history(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Registrations, "find", lambda self, publication, now: None)
    plan = Plan(1, 2_000)
    report = simulate(plan)
    smaller, found = shortest(plan, report)
    assert found.kind is report.kind is AnomalyKind.REGISTERED_TWICE
    assert found.steps < report.steps
    assert len(smaller.without) > 5
    assert "unanswered" not in smaller.without
    assert simulate(smaller).anomaly.partition(":")[0] == "registered twice"
