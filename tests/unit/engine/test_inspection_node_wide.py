"""Workers and a store process exchange reports, so that each worker reports the whole node."""

import logging

import pytest

from ropewalk.core.quotas import ConnectionQuotas
from ropewalk.core.worker_reports import WorkerReports
from ropewalk.engine import inspection
from ropewalk.engine.inspection import NodeWideInspector, reports_of_workers
from ropewalk.model.errors import Unavailable
from ropewalk.model.limits import Limits
from ropewalk.model.report import SHUTTING_DOWN, Gauges, NodeReport


class Process:
    """The report of one process."""

    def __init__(self, **counts: int) -> None:
        self.counts = counts
        self.problems: tuple[str, ...] = ()

    def report(self) -> NodeReport:
        return NodeReport(problems=self.problems, connections=1, counts=dict(self.counts))

    def figures(self) -> Gauges:
        return {"process_open_fds": 7}


class Places:
    def __init__(self, clients: int, http: int) -> None:
        self.open = clients, http
        self.elsewhere = (0, 0)

    def clients(self) -> int:
        return self.open[0]

    def http_connections(self) -> int:
        return self.open[1]

    def set_elsewhere(self, clients: int, http: int) -> None:
        self.elsewhere = clients, http


class Node:
    """A store process that may be unavailable, and its workers."""

    def __init__(self) -> None:
        self.store = Process(publications=1000)
        self.error: Exception | None = None
        self.start_store("first store")

    def start_store(self, run: str) -> None:
        self.reports: WorkerReports = reports_of_workers(self.store, run, lambda: 0.0, self.store.figures)

    def worker(
        self, name: str, own: Process, places: Places | None = None, crowds: ConnectionQuotas | None = None
    ) -> NodeWideInspector:
        async def exchange(mine: bytes) -> bytes:
            if self.error is not None:
                raise self.error
            return self.reports.answer(name, mine)

        places, crowds = places or Places(0, 0), crowds or ConnectionQuotas(Limits())
        return NodeWideInspector(name, f"run of {name}", own, exchange, places, crowds, own.figures)


async def test_each_worker_reports_the_whole_node() -> None:
    node = Node()
    first, second = Process(publications=1), Process(publications=20)
    workers = [node.worker("1", first), node.worker("2", second)]
    for worker in (*workers, *workers):
        await worker.exchange()
    reports = [worker.report() for worker in workers]
    assert [report.counts["publications"] for report in reports] == [1021, 1021]
    assert [report.workers for report in reports] == [2, 2]
    assert [report.connections for report in reports] == [3, 3]
    assert all(report.processes.keys() == {"store", "worker-1", "worker-2"} for report in reports)
    assert all(report.problems == () for report in reports)


async def test_own_values_of_a_worker_are_current() -> None:
    node, own = Node(), Process(publications=1)
    worker = node.worker("1", own)
    await worker.exchange()
    own.counts["publications"] = 2
    assert worker.report().counts["publications"] == 1002


async def test_problems_name_their_worker_and_are_reported_by_all() -> None:
    node, troubled = Node(), Process()
    node.store.problems = ("the journal cannot be written",)
    troubled.problems = ("the app does not run",)
    workers = [node.worker("1", Process()), node.worker("2", troubled)]
    for worker in (*workers, *workers):
        await worker.exchange()
    for worker in workers:
        assert worker.report().problems == ("the journal cannot be written", "worker 2: the app does not run")


async def test_only_the_stopping_worker_reports_its_shutdown() -> None:
    node, leaving = Node(), Process()
    workers = [node.worker("1", Process()), node.worker("2", leaving)]
    leaving.problems = (SHUTTING_DOWN,)
    for worker in (*workers, *workers):
        await worker.exchange()
    assert [worker.report().problems for worker in workers] == [(), (SHUTTING_DOWN,)]


@pytest.mark.parametrize("error", [Unavailable("the store process is away"), TimeoutError(), RuntimeError("a mistake")])
async def test_last_known_values_and_a_problem_are_reported_without_the_store_process(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    node = Node()
    places = Places(1, 1)
    worker, other = node.worker("1", Process(publications=1), places), node.worker("2", Process(publications=20), Places(5, 6))
    for each in (other, worker):
        await each.exchange()
    node.error = error
    await worker.exchange()
    report = worker.report()
    assert report.counts["publications"] == 1021
    (problem,) = report.problems
    assert problem.startswith("worker 1: nothing is heard of the node's other processes: ")
    assert places.elsewhere == (5, 6)
    assert bool(caplog.record_tuples) == isinstance(error, RuntimeError)
    node.error = None
    await worker.exchange()
    assert worker.report().problems == ()


async def test_connection_places_are_shared_by_all_workers() -> None:
    node = Node()
    places = [Places(1, 10), Places(2, 20), Places(4, 40)]
    workers = [node.worker(str(number), Process(), each) for number, each in enumerate(places)]
    for worker in (*workers, *workers):
        await worker.exchange()
    assert [each.elsewhere for each in places] == [(6, 60), (5, 50), (3, 30)]
    node.reports.left("2")
    await workers[0].exchange()
    assert places[0].elsewhere == (2, 20)


async def test_counters_do_not_decrease_when_the_store_process_restarts() -> None:
    node = Node()
    workers = [node.worker(name, Process(publications=1)) for name in "123"]
    for worker in (*workers, *workers):
        await worker.exchange()
    node.reports.left("3")
    for worker in workers[:2]:
        await worker.exchange()
    node.store.counts["publications"] = 0
    node.start_store("second store")
    for worker in (*workers[:2], *workers[:2]):
        await worker.exchange()
        assert worker.report().counts["publications"] == 1003
        assert worker.report().workers <= 2
    late_worker = node.worker("4", Process(publications=0))
    await late_worker.exchange()
    assert late_worker.report().counts["publications"] == 1003


async def test_exchanges_continue_until_cancelled(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    class Enough(BaseException):
        pass

    caplog.set_level(logging.CRITICAL)
    monkeypatch.setattr(inspection, "PERIOD", 0)
    errors: list[BaseException] = [Unavailable("away"), RuntimeError("a mistake"), Enough()]

    async def exchange(mine: bytes) -> bytes:
        raise errors.pop(0)

    process = Process()
    quotas = ConnectionQuotas(Limits())
    inspector = NodeWideInspector("1", "run", process, exchange, Places(0, 0), quotas, process.figures)
    with pytest.raises(Enough):
        await inspector.run()
    assert errors == []
