"""The simulation finds faults that these tests plant in the engine and in the store.

Each search begins with a seed that found the fault when the test was written. A change of the engine may change the histories:
then the search takes longer, because it goes on with other seeds.
"""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from ropewalk.adapters.backends.memory.sessions import MemorySessions
from ropewalk.adapters.backends.memory.store import MemoryPresence
from ropewalk.adapters.backends.workers.store import LeasedSessions
from ropewalk.core.cursor import Cursor, Step
from ropewalk.core.idempotency import Registrations
from ropewalk.engine.audience import JoinBuffer
from ropewalk.engine.feed import FeedReader
from ropewalk.engine.hub import Hub
from ropewalk.engine.persistent_presence import PersistentPresence
from ropewalk.engine.session_leases import LeasedSessionKeeper
from ropewalk.model.history import Gap
from ropewalk.model.messages import Position
from ropewalk.model.sessions import Renewal, SessionSnapshot, SessionTaken
from ropewalk.testing.shared_store import LosableStore
from ropewalk.testing.simulation.ledger import AnomalyKind
from ropewalk.testing.simulation.steps import ACTIONS, shortest, simulate
from ropewalk.testing.simulation.world import Plan

SHORT, LONG = 300, 2_500
"""Steps. Every run ends with a quiet period, which finds what is missing after it."""

SEARCHED = range(60)
"""Seeds, if the first one does not find the fault: short runs first, then a few long ones."""


def kinds_found(seeds: Sequence[int] = range(5), steps: int = LONG) -> set[AnomalyKind | None]:
    """What each of these runs finds."""
    return {simulate(Plan(seed, steps)).kind for seed in seeds}


def is_found(kind: AnomalyKind, seed: int, without: Iterable[str] = ()) -> bool:
    """Whether a run finds it. Begins with this seed."""
    plans = [Plan(each, SHORT, without=frozenset(without)) for each in (seed, *SEARCHED)]
    plans += [Plan(each, LONG, without=frozenset(without)) for each in SEARCHED[:20]]
    return any(simulate(plan).kind is kind for plan in plans)


def repeat_often(monkeypatch: pytest.MonkeyPatch, action: str) -> None:
    monkeypatch.setitem(ACTIONS, action, (0.5, ACTIONS[action][1]))


# --- delivery ---------------------------------------------------------------------------------------------------------


def test_cursor_that_accepts_every_message_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cursor, "take", lambda self, epoch, offset: Step.NEXT)
    assert kinds_found() <= {AnomalyKind.REPEATED, AnomalyKind.REORDERED, AnomalyKind.SILENT_GAP}


def test_cursor_that_accepts_jumps_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    take = Cursor.take

    def accept_jump(self: Cursor, epoch: str, offset: int) -> Step:
        step = take(self, epoch, offset)
        if step is Step.JUMP:
            self.move(epoch, offset)
            return Step.NEXT
        return step

    monkeypatch.setattr(Cursor, "take", accept_jump)
    assert AnomalyKind.SILENT_GAP in kinds_found()


def test_fill_that_delivers_nothing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def skip(self: FeedReader, audience: Any, backlog: Any, answer: Any) -> None:
        audience.cursor.move(answer.epoch, answer.tip)

    monkeypatch.setattr(FeedReader, "_deliver_answer", skip)
    assert kinds_found() <= {AnomalyKind.SILENT_GAP, AnomalyKind.LOST}


def test_lost_message_of_a_quiet_stream_is_found_if_tips_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    async def do_nothing(self: FeedReader) -> None:
        pass

    monkeypatch.setattr(FeedReader, "upkeep", do_nothing)
    # New subscriptions bring all listeners of a stream up to date.
    without = ("cut", "kick", "node_dies", "slow_down", "store_away", "store_lost", "unsubscribe", "vanish")
    assert is_found(AnomalyKind.LOST, 3, without)


def test_join_that_does_not_wait_for_other_listeners_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def do_nothing(self: FeedReader, answer: Any) -> None:
        pass

    monkeypatch.setattr(FeedReader, "reach", do_nothing)
    assert kinds_found() & {AnomalyKind.REPEATED, AnomalyKind.REORDERED, AnomalyKind.SILENT_GAP}


def test_join_that_does_not_wait_for_the_feed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def do_nothing(self: FeedReader, streams: Any) -> list[Position]:
        return [Position("", 0) for _ in streams]

    monkeypatch.setattr(FeedReader, "follow", do_nothing)
    assert AnomalyKind.SILENT_GAP in kinds_found()


def test_missing_gap_notice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Hub, "send_gap", lambda self, audience, gap, after: None)
    assert AnomalyKind.SILENT_GAP in kinds_found()


def test_gap_that_covers_the_messages_behind_it_during_a_join_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def extend_gap(self: JoinBuffer, message: Any) -> None:
        if message.offset and self.items and isinstance(gap := self.items[-1], Gap):
            self.items[-1] = replace(gap, epoch=message.epoch, oldest=message.offset + 1)
        else:
            add(self, message)

    add = JoinBuffer.add
    monkeypatch.setattr(JoinBuffer, "add", extend_gap)
    repeat_often(monkeypatch, "store_lost")
    assert is_found(AnomalyKind.FALSE_GAP, 41)


def test_gap_that_covers_kept_messages_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def skip_one_more(self: FeedReader, audience: Any, gap: Gap, after: Position) -> None:
        report_gap(self, audience, replace(gap, oldest=min(gap.oldest + 1, gap.tip + 1)), after)

    report_gap = FeedReader._report_gap
    monkeypatch.setattr(FeedReader, "_report_gap", skip_one_more)
    assert AnomalyKind.FALSE_GAP in kinds_found()


def test_store_without_deduplication_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Registrations, "find", lambda self, publication, now: None)
    assert kinds_found() == {AnomalyKind.REGISTERED_TWICE}


def test_receipt_with_a_wrong_position_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    find = Registrations.find

    def off_by_one(self: Registrations, publication: Any, now: float) -> Position | None:
        first = find(self, publication, now)
        return Position(first.epoch, first.offset + 1) if first else None

    monkeypatch.setattr(Registrations, "find", off_by_one)
    assert kinds_found() == {AnomalyKind.WRONG_RECEIPT}


def test_epoch_reused_after_data_loss_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def lose_all_but_epochs(self: LosableStore) -> None:
        epochs = {stream: log.epoch for stream, log in self._table.logs.items()}
        await lose(self)
        for stream, epoch in epochs.items():
            self._table._open(stream, epoch)

    lose = LosableStore.lose
    monkeypatch.setattr(LosableStore, "lose", lose_all_but_epochs)
    repeat_often(monkeypatch, "store_lost")
    assert kinds_found(range(3)) == {AnomalyKind.REUSED_POSITION}


# --- remote disconnects -----------------------------------------------------------------------------------------------


def test_remote_disconnect_that_keeps_disconnected_sessions_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def revoke_none(self: MemorySessions, ids: str, reconnect: bool) -> list[tuple[str, SessionSnapshot]]:
        return []

    monkeypatch.setattr(MemorySessions, "revoke", revoke_none)
    assert is_found(AnomalyKind.KICKED_SESSION_BACK, 4)


def test_remote_disconnect_that_is_not_repeated_for_a_node_that_missed_it_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    tell = MemorySessions._notify

    def tell_unless_revoked(self: MemorySessions, node: str, order: SessionTaken) -> None:
        if not order.revoked:
            tell(self, node, order)

    monkeypatch.setattr(MemorySessions, "_notify", tell_unless_revoked)
    # Any other change of a session is written to the store, which knows that it was revoked.
    without = ("cut", "vanish", "node_dies", "slow_down", "unsubscribe", "join", "leave")
    assert is_found(AnomalyKind.KICKED_SESSION_BACK, 8, without)


# --- leases, sessions and presence ------------------------------------------------------------------------------------


def test_lease_that_never_ends_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LosableStore, "end_lease", lambda self, node: None)
    assert is_found(AnomalyKind.GHOST_MEMBER, 91)


def test_presence_set_that_ignores_the_end_of_a_lease_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryPresence, "node_died", lambda self, node: None)
    assert is_found(AnomalyKind.GHOST_MEMBER, 91)


def test_lost_presence_event_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    tell = MemoryPresence.publish
    sent = []

    def lose_every_tenth(self: MemoryPresence, events: list[Any]) -> list[Any]:
        sent.extend(events)
        return events if events and len(sent) % 10 == 0 else tell(self, events)

    monkeypatch.setattr(MemoryPresence, "publish", lose_every_tenth)
    assert is_found(AnomalyKind.GHOST_MEMBER, 5)


def test_node_that_does_not_rejoin_its_members_after_its_lease_ended_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PersistentPresence, "reconcile", lambda self, session, stream: None)
    assert is_found(AnomalyKind.MISSING_MEMBER, 2)


def test_leave_that_is_not_repeated_after_an_outage_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    reconcile = PersistentPresence.reconcile

    def reconcile_joins(self: PersistentPresence, session: Any, stream: str) -> None:
        def reconcile_if_member() -> None:  # after the session has updated its members
            if stream in (session.members or {}):
                reconcile(self, session, stream)

        asyncio.get_running_loop().call_soon(reconcile_if_member)

    monkeypatch.setattr(PersistentPresence, "reconcile", reconcile_joins)
    repeat_often(monkeypatch, "store_away")
    assert is_found(AnomalyKind.GHOST_MEMBER, 5)


def test_sessions_that_are_not_written_while_connected_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LeasedSessionKeeper, "changed", lambda self, session: None)
    assert is_found(AnomalyKind.LOST_SESSION, 5)


def test_node_that_keeps_a_connection_whose_session_was_taken_over_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LeasedSessionKeeper, "end_taken", lambda self, order: 0)
    assert is_found(AnomalyKind.SESSION_TWICE, 0)


def test_lost_disconnect_request_that_renewals_do_not_repeat_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def renew_lease_only(self: LeasedSessions, ttl: float, received: Any) -> Renewal:
        return Renewal(self._shared.renew(self._node, ttl, received).lease)

    monkeypatch.setattr(LeasedSessions, "renew", renew_lease_only)
    assert is_found(AnomalyKind.SESSION_TWICE, 1)


def test_disconnected_session_that_is_not_written_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def do_nothing(self: LeasedSessionKeeper, session: Any) -> None:
        pass

    monkeypatch.setattr(LeasedSessionKeeper, "_leave", do_nothing)
    assert is_found(AnomalyKind.GHOST_SESSION, 5)


def test_expired_session_that_is_reported_twice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def report_again(self: MemorySessions, limit: int) -> list[tuple[str, SessionSnapshot]]:
        return [(sid, msgspec.msgpack.decode(data, type=SessionSnapshot)) for sid, data in list(self._over)[:limit]]

    monkeypatch.setattr(MemorySessions, "expired", report_again)
    assert is_found(AnomalyKind.ENDED_TWICE, 9)


def test_session_lost_with_the_node_that_has_just_taken_it_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    take = MemorySessions.take

    def take_without_successor(self: MemorySessions, node: str, sid: str, successor: str) -> SessionSnapshot | None:
        return take(self, node, sid, "")

    monkeypatch.setattr(MemorySessions, "take", take_without_successor)
    assert is_found(AnomalyKind.LOST_SESSION, 3)


# --- shrinking --------------------------------------------------------------------------------------------------------


def test_failure_is_shrunk_to_a_shorter_history(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Registrations, "find", lambda self, publication, now: None)
    plan = Plan(4, 2_000)
    report = simulate(plan)
    smaller, found = shortest(plan, report)
    assert found.kind is report.kind is AnomalyKind.REGISTERED_TWICE
    assert found.steps < report.steps
    assert len(smaller.without) > 5
    assert "unanswered" not in smaller.without
    assert simulate(smaller).anomaly.partition(":")[0] == "registered twice"
