"""What the store process answers to workers that report: everything of the node but the asking worker's own."""

import msgspec
import pytest

from ropewalk.core import worker_reports
from ropewalk.core.node_reports import merged
from ropewalk.core.worker_reports import Counters, NodeAnswer, WorkerReport, WorkerReports
from ropewalk.model.report import NodeReport


class Store:
    """One life of a store process."""

    def __init__(self, run: str = "store", publications: int = 0) -> None:
        self.time = 0.0
        self.own = NodeReport(counts={"publications": publications}, backend={"streams": 5}, workers=0)
        self.made = 0
        self.reports = WorkerReports(self._make, run, lambda: self.time)

    def _make(self) -> NodeReport:
        self.made += 1
        return self.own

    def hears(self, worker: str, publications: int, run: str = "", former: Counters | None = None) -> NodeAnswer:
        report = NodeReport(counts={"publications": publications}, connections=1, rates={"publications": 1.0})
        told = WorkerReport(run or f"run of {worker}", report, former or {})
        answer = self.reports.answer(worker, msgspec.msgpack.encode(told))
        return msgspec.msgpack.decode(answer, type=NodeAnswer)


def others(answer: NodeAnswer) -> NodeReport:
    return merged([answer.now, *answer.counters.values()])


def published(answer: NodeAnswer) -> int:
    return others(answer).counts["publications"]


def test_a_worker_hears_of_all_but_itself() -> None:
    store = Store(publications=1000)
    assert published(store.hears("1", 1)) == 1000
    assert published(store.hears("2", 20)) == 1001
    node = others(store.hears("1", 3))
    assert (node.counts, node.workers, node.connections) == ({"publications": 1020}, 1, 1)
    assert node.backend == {"streams": 5}


def test_what_a_worker_counted_stays_when_it_has_left_and_the_rest_goes() -> None:
    store = Store()
    store.hears("2", 20)
    store.reports.left("2")
    node = others(store.hears("1", 1))
    assert (node.counts, node.workers, node.connections, node.rates) == ({"publications": 20}, 0, 0, {})
    assert published(store.hears("2", 5, run="next run of 2")) == 21
    assert published(store.hears("1", 1)) == 25


def test_a_worker_and_its_successor_count_both_until_the_first_is_gone() -> None:
    store = Store()
    store.hears("2", 20)
    store.hears("2", 5, run="next run of 2")
    node = others(store.hears("1", 0))
    assert (node.counts["publications"], node.workers) == (25, 2)
    store.reports.left("2")  # the first of them; nobody says which
    assert published(store.hears("1", 0)) == 25
    store.hears("2", 6, run="next run of 2")
    node = others(store.hears("1", 0))
    assert (node.counts["publications"], node.workers) == (26, 1)


def test_a_worker_that_hangs_is_a_problem_of_the_node_until_it_reports_or_ends() -> None:
    store = Store()
    for worker in "23":
        store.hears(f"{worker}~ab", 1)
    store.time += worker_reports.SILENT_SECONDS
    assert others(store.hears("1", 1)).problems == ()
    store.time += 0.1
    for worker in "23":
        hanging = [name for name in "23" if name >= worker]
        problems = others(store.hears("1", 1)).problems
        assert [problem.partition(": ")[0] for problem in problems] == [f"worker {name}" for name in hanging]
        if worker == "2":
            store.hears("2~ab", 1)
    store.reports.left("3~ab")
    node = others(store.hears("1", 1))
    assert (node.problems, node.workers) == ((), 1)


def test_a_worker_that_only_lost_its_connection_is_counted_once() -> None:
    store = Store()
    store.hears("2", 20)
    store.reports.left("2")
    assert published(store.hears("2", 21)) == 0
    assert published(store.hears("1", 0)) == 21


def test_one_that_never_reported_may_leave() -> None:
    store = Store()
    store.reports.left("7")
    assert published(store.hears("1", 0)) == 0


def test_the_next_store_process_hears_from_a_worker_what_the_one_before_knew() -> None:
    before = Store("first store", publications=100)
    before.hears("3", 3000)
    before.reports.left("3")
    before.hears("2", 20)
    former = before.hears("1", 1).counters

    after = Store("second store", publications=5)
    known = 5 + 100 + 3000 + 20
    assert published(after.hears("1", 1, former=former)) == known
    assert published(after.hears("2", 22)) == known - 20 + 1
    assert published(after.hears("1", 1)) == known + 2


def test_what_two_workers_tell_of_the_store_process_before_counts_once_and_as_of_the_later() -> None:
    before = Store("first store", publications=100)
    early = before.hears("1", 1).counters
    before.time, before.own = 10.0, NodeReport(counts={"publications": 150}, workers=0)
    late = before.hears("2", 20).counters

    for first, second in ((early, late), (late, early)):
        after = Store("second store")
        after.hears("1", 1, former=first)
        after.hears("2", 20, former=second)
        assert published(after.hears("1", 1)) == 150 + 20


def test_runs_that_ended_long_ago_are_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_reports, "MOST_ENDED", 3)
    store = Store()
    for life in range(10):
        store.hears("2", 10, run=f"life {life}")
        store.reports.left("2")
    answer = store.hears("1", 1)
    assert published(answer) == 100
    assert len(answer.counters) == 3 + 2  # ended, the store process and the sum
    after = Store("next")
    for worker in "13":
        after.hears(worker, 1, former=answer.counters)
    assert published(after.hears("1", 1)) == 101


def test_what_is_inherited_is_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_reports, "MOST_ENDED", 1)
    monkeypatch.setattr(worker_reports, "MOST_WORKERS", 1)
    former = {f"life {life}": NodeReport(counts={"publications": 10}, workers=0) for life in range(10)}
    answer = Store().hears("1", 1, former=former)
    assert published(answer) == 100
    assert len(answer.counters) == 4 + 2


def test_there_is_a_bound_on_workers_and_the_one_beyond_it_hears_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_reports, "MOST_WORKERS", 2)
    store = Store()
    store.hears("1", 1)
    store.hears("2", 20)
    beyond = store.hears("3", 300)
    assert (published(beyond), others(beyond).problems) == (21, (worker_reports.TOO_MANY,))
    within = store.hears("1", 1)
    assert (published(within), others(within).problems) == (20, ())
    store.reports.left("2")
    assert others(store.hears("3", 300)).problems == ()


def test_the_store_process_is_not_inspected_again_for_each_worker() -> None:
    store = Store()
    for worker in "123":
        store.hears(worker, 1)
    assert store.made == 1
    store.time += worker_reports.FRESH_SECONDS
    store.hears("1", 1)
    assert store.made == 2


def test_what_is_no_report_is_refused_and_changes_nothing() -> None:
    store = Store()
    store.hears("2", 20)
    with pytest.raises(msgspec.DecodeError):
        store.reports.answer("2", b"\x01")
    assert published(store.hears("1", 1)) == 20
