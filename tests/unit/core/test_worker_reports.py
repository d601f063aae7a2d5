"""The response of the store process to a worker's report: the values of the node without those of that worker."""

import msgspec
import pytest

from ropewalk.core import worker_reports
from ropewalk.core.node_reports import merge_reports
from ropewalk.core.worker_reports import Counters, NodeAnswer, WorkerReport, WorkerReports
from ropewalk.model.report import NodeReport


class Store:
    """One run of a store process."""

    def __init__(self, run: str = "store", publications: int = 0) -> None:
        self.time = 0.0
        self.own = NodeReport(counts={"publications": publications}, backend={"streams": 5}, workers=0)
        self.made = 0
        self.reports = WorkerReports(self._make, run, lambda: self.time)

    def _make(self) -> NodeReport:
        self.made += 1
        return self.own

    def report_from(self, worker: str, publications: int, run: str = "", former: Counters | None = None) -> NodeAnswer:
        report = NodeReport(counts={"publications": publications}, connections=1, rates={"publications": 1.0})
        sent = WorkerReport(run or f"run of {worker}", report, former or {})
        answer = self.reports.answer(worker, msgspec.msgpack.encode(sent))
        return msgspec.msgpack.decode(answer, type=NodeAnswer)


def others(answer: NodeAnswer) -> NodeReport:
    return merge_reports([answer.now, *answer.counters.values()])


def published(answer: NodeAnswer) -> int:
    return others(answer).counts["publications"]


def test_worker_receives_everything_but_its_own_report() -> None:
    store = Store(publications=1000)
    assert published(store.report_from("1", 1)) == 1000
    assert published(store.report_from("2", 20)) == 1001
    node = others(store.report_from("1", 3))
    assert (node.counts, node.workers, node.connections) == ({"publications": 1020}, 1, 1)
    assert node.backend == {"streams": 5}


def test_counters_of_an_ended_worker_are_kept_and_its_gauges_dropped() -> None:
    store = Store()
    store.report_from("2", 20)
    store.reports.left("2")
    node = others(store.report_from("1", 1))
    assert (node.counts, node.workers, node.connections, node.rates) == ({"publications": 20}, 0, 0, {})
    assert published(store.report_from("2", 5, run="next run of 2")) == 21
    assert published(store.report_from("1", 1)) == 25


def test_worker_and_its_successor_are_both_counted_until_the_first_has_left() -> None:
    store = Store()
    store.report_from("2", 20)
    store.report_from("2", 5, run="next run of 2")
    node = others(store.report_from("1", 0))
    assert (node.counts["publications"], node.workers) == (25, 2)
    store.reports.left("2")  # the first of them; the name is the same for both
    assert published(store.report_from("1", 0)) == 25
    store.report_from("2", 6, run="next run of 2")
    node = others(store.report_from("1", 0))
    assert (node.counts["publications"], node.workers) == (26, 1)


def test_silent_worker_is_reported_as_a_problem_until_it_reports_or_leaves() -> None:
    store = Store()
    for worker in "23":
        store.report_from(f"{worker}~ab", 1)
    store.time += worker_reports.SILENT_SECONDS
    assert others(store.report_from("1", 1)).problems == ()
    store.time += 0.1
    for worker in "23":
        hanging = [name for name in "23" if name >= worker]
        problems = others(store.report_from("1", 1)).problems
        assert [problem.partition(": ")[0] for problem in problems] == [f"worker {name}" for name in hanging]
        if worker == "2":
            store.report_from("2~ab", 1)
    store.reports.left("3~ab")
    node = others(store.report_from("1", 1))
    assert (node.problems, node.workers) == ((), 1)


def test_reconnected_worker_is_counted_once() -> None:
    store = Store()
    store.report_from("2", 20)
    store.reports.left("2")
    assert published(store.report_from("2", 21)) == 0
    assert published(store.report_from("1", 0)) == 21


def test_worker_may_leave_before_its_first_report() -> None:
    store = Store()
    store.reports.left("7")
    assert published(store.report_from("1", 0)) == 0


def test_next_store_process_inherits_counters_from_a_worker() -> None:
    before = Store("first store", publications=100)
    before.report_from("3", 3000)
    before.reports.left("3")
    before.report_from("2", 20)
    former = before.report_from("1", 1).counters

    after = Store("second store", publications=5)
    known = 5 + 100 + 3000 + 20
    assert published(after.report_from("1", 1, former=former)) == known
    assert published(after.report_from("2", 22)) == known - 20 + 1
    assert published(after.report_from("1", 1)) == known + 2


def test_inherited_counters_are_counted_once_and_the_later_ones_win() -> None:
    before = Store("first store", publications=100)
    early = before.report_from("1", 1).counters
    before.time, before.own = 10.0, NodeReport(counts={"publications": 150}, workers=0)
    late = before.report_from("2", 20).counters

    for first, second in ((early, late), (late, early)):
        after = Store("second store")
        after.report_from("1", 1, former=first)
        after.report_from("2", 20, former=second)
        assert published(after.report_from("1", 1)) == 150 + 20


def test_counters_of_old_runs_are_summed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_reports, "MAX_ENDED_RUNS", 3)
    store = Store()
    for life in range(10):
        store.report_from("2", 10, run=f"life {life}")
        store.reports.left("2")
    answer = store.report_from("1", 1)
    assert published(answer) == 100
    assert len(answer.counters) == 3 + 2  # ended, the store process and the sum
    after = Store("next")
    for worker in "13":
        after.report_from(worker, 1, former=answer.counters)
    assert published(after.report_from("1", 1)) == 101


def test_inherited_counters_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_reports, "MAX_ENDED_RUNS", 1)
    monkeypatch.setattr(worker_reports, "MAX_WORKERS", 1)
    former = {f"life {life}": NodeReport(counts={"publications": 10}, workers=0) for life in range(10)}
    answer = Store().report_from("1", 1, former=former)
    assert published(answer) == 100
    assert len(answer.counters) == 4 + 2


def test_number_of_workers_is_limited_and_exceeding_it_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_reports, "MAX_WORKERS", 2)
    store = Store()
    store.report_from("1", 1)
    store.report_from("2", 20)
    beyond = store.report_from("3", 300)
    assert (published(beyond), others(beyond).problems) == (21, (worker_reports.TOO_MANY,))
    within = store.report_from("1", 1)
    assert (published(within), others(within).problems) == (20, ())
    store.reports.left("2")
    assert others(store.report_from("3", 300)).problems == ()


def test_report_of_the_store_process_is_cached_between_workers() -> None:
    store = Store()
    for worker in "123":
        store.report_from(worker, 1)
    assert store.made == 1
    store.time += worker_reports.CACHE_SECONDS
    store.report_from("1", 1)
    assert store.made == 2


def test_malformed_report_is_refused_without_effect() -> None:
    store = Store()
    store.report_from("2", 20)
    with pytest.raises(msgspec.DecodeError):
        store.reports.answer("2", b"\x01")
    assert published(store.report_from("1", 1)) == 20
