"""The journal rows of sessions whose worker or store is lost."""

import json

from ropewalk.adapters.backends.workers.store import RECONNECT_GRACE_SECONDS, InterruptedSessions
from ropewalk.model.journal import Row, RowKind
from ropewalk.model.sessions import SessionSnapshot
from ropewalk.testing.clock import ManualClock
from tests.unit.adapters.backends.fake_journal import FakeJournal

SNAPSHOT = SessionSnapshot("ids", {})


class Bench:
    """`kept` has the sessions in the store and how long it keeps each."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.journal = FakeJournal()
        self.kept: dict[str, float] = {}
        self.ended: list[str] = []
        self.interrupted = InterruptedSessions(self.journal, self.clock, self.kept.get, lambda sid, _: self.ended.append(sid))

    def note(self, worker: str, *rows: tuple[RowKind, str]) -> None:
        self.interrupted.note(worker, [Row(kind, sid, self.clock(), sid=sid) for kind, sid in rows])

    def pass_time(self, seconds: float) -> None:
        self.clock.now += seconds
        self.interrupted.settle()

    def story(self) -> list[tuple[RowKind, str]]:
        return [(row.kind, row.sid) for row in self.journal.rows]


def test_session_of_a_lost_worker_is_disconnected_and_ended_unless_it_is_kept() -> None:
    bench = Bench()
    bench.kept["kept"] = 300.0
    bench.note("one", (RowKind.CONNECTED, "kept"), (RowKind.CONNECTED, "simple"), (RowKind.CONNECTED, "left"))
    bench.note("one", (RowKind.DISCONNECTED, "left"), (RowKind.ENDED, "left"))
    before = len(bench.story())
    bench.interrupted.lost("one")
    bench.pass_time(RECONNECT_GRACE_SECONDS - 1)
    assert bench.story()[before:] == []
    bench.pass_time(1)
    assert bench.story()[before:] == [
        (RowKind.DISCONNECTED, "kept"),
        (RowKind.DISCONNECTED, "simple"),
        (RowKind.ENDED, "simple"),
    ]
    details = [json.loads(row.detail) for row in bench.journal.rows if row.detail]
    assert [(each["kept"], each["reason"]) for each in details] == [(True, "crashed"), (False, "crashed")]


def test_session_claimed_by_its_returning_worker_is_not_disconnected() -> None:
    bench = Bench()
    bench.note("one", (RowKind.CONNECTED, "stays"), (RowKind.RESTORED, "goes"))
    bench.interrupted.lost("one")
    bench.interrupted.claim("one", ["stays"])
    bench.pass_time(RECONNECT_GRACE_SECONDS)
    assert [sid for kind, sid in bench.story() if kind is RowKind.DISCONNECTED] == ["goes"]
    bench.interrupted.lost("one")
    bench.pass_time(RECONNECT_GRACE_SECONDS)
    assert bench.story()[-2:] == [(RowKind.DISCONNECTED, "stays"), (RowKind.ENDED, "stays")]


def test_session_ended_by_another_worker_is_disconnected_first() -> None:
    bench = Bench()
    bench.kept["sid"] = 300.0
    bench.note("one", (RowKind.CONNECTED, "sid"))
    bench.interrupted.lost("one")
    bench.note("two", (RowKind.RESTORED, "next"), (RowKind.ENDED, "sid"))
    assert (RowKind.DISCONNECTED, "sid") in bench.story()[: bench.story().index((RowKind.ENDED, "sid"))]
    bench.pass_time(RECONNECT_GRACE_SECONDS)
    assert bench.story().count((RowKind.DISCONNECTED, "sid")) == 1


def test_recovered_session_without_a_worker_is_ended() -> None:
    bench = Bench()
    rows = [Row(RowKind.DISCONNECTED, sid, 1.0, sid=sid) for sid in ("lives", "gone")]
    bench.interrupted.recovered(rows, {"lives": SNAPSHOT, "gone": SNAPSHOT})
    bench.interrupted.claim("one", ["lives"])
    bench.pass_time(RECONNECT_GRACE_SECONDS - 1)
    assert bench.ended == []
    bench.pass_time(1)
    assert (bench.ended, bench.story()) == (["gone"], [(RowKind.DISCONNECTED, "gone")])


def test_unresolved_sessions_are_ended_when_the_server_stops() -> None:
    bench = Bench()
    bench.note("one", (RowKind.CONNECTED, "sid"))
    bench.interrupted.lost("one")
    bench.interrupted.settle(at_once=True)
    assert bench.story()[1:] == [(RowKind.DISCONNECTED, "sid"), (RowKind.ENDED, "sid")]
