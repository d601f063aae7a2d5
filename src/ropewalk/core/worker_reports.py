"""What the store process knows of its workers' reports. Each worker tells its own about once a second, and hears of everything
else in the node.

Invariant: a counter of the node does not fall because a process of it ends. What a process had counted when it was heard last
goes on counting; what it counted after that, at most a second's worth, is lost. So counters are kept by *run*, one life of a
process, and every worker knows those of all runs: a store process that is started again hears them from the first that asks.
"""

from collections.abc import Callable, Mapping

import msgspec

from ropewalk.core.node_reports import NOTHING, counters_of, later, merged, without_counters
from ropewalk.model.report import NodeReport

MOST_WORKERS = 128
"""Workers whose reports are kept. One more is told of the others and not counted itself; its `/health` says so."""

MOST_ENDED = 128
"""Ended runs whose counters are kept apart. A run that is among them may come back; older ones are added up for good."""

ENDED_BEFORE = ""
"""In place of a run's name: the sum of those that ended longest ago."""

FRESH_SECONDS = 0.5
"""How long the store process's own report is used again: many workers ask within a moment."""

TOO_MANY = f"{MOST_WORKERS} workers report already; this one is not counted by the others"

Counters = Mapping[str, NodeReport]
"""By run: what it has counted, as `core.node_reports.counters_of` has it."""


class WorkerReport(msgspec.Struct, frozen=True):
    """What a worker tells. `former`: after the store process has changed, what the one before it had said."""

    run: str
    report: NodeReport
    former: Counters = {}


class NodeAnswer(msgspec.Struct, frozen=True):
    """What it hears: the run of the store process, the counters of all runs but its own, and the rest of their reports."""

    store: str
    counters: Counters
    now: NodeReport


_worker_reports = msgspec.msgpack.Decoder(WorkerReport)


class WorkerReports:
    """`own` makes the report of the store process, whose run is `run`. `clock` counts seconds and
    never goes back."""

    def __init__(self, own: Callable[[], NodeReport], run: str, clock: Callable[[], float]) -> None:
        self._own = own
        self._run = run
        self._clock = clock
        self._fresh: tuple[float, NodeReport] | None = None
        self._live: dict[str, WorkerReport] = {}
        self._ended: dict[str, NodeReport] = {}  # by run, the one that ended last at the end
        self._ended_before = NOTHING

    def answer(self, worker: str, theirs: bytes) -> bytes:
        """Takes the report of `worker`, and returns a `NodeAnswer`. Raises `msgspec.DecodeError` for what is no report."""
        told = _worker_reports.decode(theirs)
        self._inherit(told.former)
        counted = self._take(worker, told)
        others = [other for name, other in self._live.items() if name != worker]
        store = self._store()
        counters = {
            self._run: counters_of(store),
            ENDED_BEFORE: self._ended_before,
            **self._ended,
            **{other.run: counters_of(other.report) for other in others},
        }
        now = merged([without_counters(report) for report in (store, *(other.report for other in others))])
        if not counted:
            now = msgspec.structs.replace(now, problems=(*now.problems, TOO_MANY))
        return msgspec.msgpack.encode(NodeAnswer(self._run, counters, now))

    def left(self, worker: str) -> None:
        """Its connection has ended. Where only the connection did, its next report takes it back in."""
        told = self._live.pop(worker, None)
        if told is not None:
            self._end(told.run, counters_of(told.report))

    def _take(self, worker: str, told: WorkerReport) -> bool:
        known = self._live.get(worker)
        if known is None and len(self._live) >= MOST_WORKERS:
            return False
        if known is not None and known.run != told.run:
            self.left(worker)  # its successor is heard before its end is
        self._ended.pop(told.run, None)
        self._live[worker] = told
        return True

    def _inherit(self, former: Counters) -> None:
        known = {self._run, *(told.run for told in self._live.values())}
        for run, counters in former.items():
            if run == ENDED_BEFORE:
                self._ended_before = later(self._ended_before, counters)
            elif run not in known:
                self._end(run, later(self._ended.get(run, NOTHING), counters))

    def _end(self, run: str, counters: NodeReport) -> None:
        self._ended[run] = counters
        if len(self._ended) > MOST_ENDED:
            oldest = next(iter(self._ended))
            self._ended_before = merged([self._ended_before, self._ended.pop(oldest)])

    def _store(self) -> NodeReport:
        now = self._clock()
        if self._fresh is None or now - self._fresh[0] >= FRESH_SECONDS:
            self._fresh = now, self._own()
        return self._fresh[1]
