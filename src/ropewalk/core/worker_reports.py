"""The reports of a node's workers, in the store process. A worker sends its report about once a second and receives the others.

Invariant: a counter of the node does not fall when one of its processes ends. The counters of the process's last report are
kept; increments since then, at most those of a second, are lost. A worker that shuts down sends a final report. Counters are
kept by *run*, which is one start of a process, and every worker has those of all runs: a restarted store process receives them
with the first report.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from ropewalk.core.node_reports import NOTHING, extract_counters, label_problem, merge_reports, newest, strip_counters
from ropewalk.model.report import NodeReport

MAX_WORKERS = 128
"""Workers whose reports are kept. A further worker receives the reports but is not counted, which its `/health` shows."""

MAX_ENDED_RUNS = 128
"""Ended runs whose counters are kept separately, because the run may reconnect. Older ones are summed."""

ENDED_BEFORE = ""
"""In place of a run's name: the sum of the runs that ended longest ago."""

SILENT_SECONDS = 10.0
"""A connected worker without a report for so long hangs, and with it its clients."""

CACHE_SECONDS = 0.5
"""How long the store process's own report is reused."""

TOO_MANY = f"more than {MAX_WORKERS} workers: the others do not count this one"

Counters = Mapping[str, NodeReport]
"""By run: the counters, as returned by `core.node_reports.extract_counters`."""


class WorkerReport(msgspec.Struct, frozen=True):
    """Sent by a worker. `former`: after a restart of the store process, the counters that the one before it had sent."""

    run: str
    report: NodeReport
    former: Counters = {}


class NodeAnswer(msgspec.Struct, frozen=True):
    """The answer: the run of the store process, the counters of all other runs, and the rest of their reports, merged."""

    store: str
    counters: Counters
    now: NodeReport


class _LastReport(NamedTuple):
    worker: str
    report: NodeReport
    at: float


_worker_reports = msgspec.msgpack.Decoder(WorkerReport)


class WorkerReports:
    """Reports of live and ended runs.

    Args:
        own: makes the report of the store process.
        run: the run of the store process.
        clock: seconds, monotonic.
    """

    def __init__(self, own: Callable[[], NodeReport], run: str, clock: Callable[[], float]) -> None:
        self._own = own
        self._run = run
        self._clock = clock
        self._cached: tuple[float, NodeReport] | None = None
        self._live: dict[str, _LastReport] = {}  # by run: during a replacement two workers have the same name
        self._ended: dict[str, NodeReport] = {}  # by run, in the order of their end
        self._ended_before = NOTHING

    def answer(self, worker: str, theirs: bytes) -> bytes:
        """Records the report of `worker`, and returns a `NodeAnswer`. Raises `msgspec.DecodeError` for a malformed report."""
        received = _worker_reports.decode(theirs)
        now = self._clock()
        self._inherit(received.former)
        counted = received.run in self._live or len(self._live) < MAX_WORKERS
        if counted:
            self._ended.pop(received.run, None)
            self._live[received.run] = _LastReport(worker, received.report, now)
        store = self._store_report(now)
        others = {run: last for run, last in self._live.items() if run != received.run}
        counters = {
            self._run: extract_counters(store),
            ENDED_BEFORE: self._ended_before,
            **self._ended,
            **{run: extract_counters(last.report) for run, last in others.items()},
        }
        problems = NodeReport(problems=tuple(self._problems(now, counted)), workers=0)
        reports = (store, *(last.report for last in others.values()))
        rest = merge_reports([*map(strip_counters, reports), problems])
        return msgspec.msgpack.encode(NodeAnswer(self._run, counters, rest))

    def left(self, worker: str) -> None:
        """A connection of the worker has ended. If the process is alive, its next report, over another connection, adds it
        again."""
        for run in [run for run, last in self._live.items() if last.worker == worker]:
            self._ended[run] = extract_counters(self._live.pop(run).report)
        self._sum_oldest(MAX_ENDED_RUNS)

    def _inherit(self, former: Counters) -> None:
        for run, counters in former.items():
            if run == ENDED_BEFORE:
                self._ended_before = newest(self._ended_before, counters)
            elif run != self._run and run not in self._live:
                self._ended[run] = newest(self._ended.get(run, NOTHING), counters)
        # A higher limit: other workers will send the same runs, and live ones their reports.
        self._sum_oldest(2 * (MAX_ENDED_RUNS + MAX_WORKERS))

    def _sum_oldest(self, limit: int) -> None:
        while len(self._ended) > limit:
            oldest = next(iter(self._ended))
            self._ended_before = merge_reports([self._ended_before, self._ended.pop(oldest)])

    def _problems(self, now: float, counted: bool) -> Iterator[str]:
        for last in self._live.values():
            if now - last.at > SILENT_SECONDS:
                yield label_problem(last.worker.partition("~")[0], f"no report for more than {SILENT_SECONDS:g} s")
        if not counted:
            yield TOO_MANY

    def _store_report(self, now: float) -> NodeReport:
        if self._cached is None or now - self._cached[0] >= CACHE_SECONDS:
            self._cached = now, self._own()
        return self._cached[1]
