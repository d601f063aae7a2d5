"""What the store process knows of its workers' reports. Each worker tells its own about once a second, and hears of everything
else in the node.

Invariant: a counter of the node does not fall because a process of it ends. What a process had counted when it was heard last
goes on counting; what it counted after that, at most a second's worth, is lost. A worker that ends in order reports as the
last thing. Counters are kept by *run*, one life of a process, and every worker knows those of all runs: a store process that
is started again hears them from the first that asks.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from ropewalk.core.node_reports import NOTHING, counters_of, later, merged, problem_of, without_counters
from ropewalk.model.report import NodeReport

MOST_WORKERS = 128
"""Workers whose reports are kept. One more is told of the others and not counted itself; its `/health` says so."""

MOST_ENDED = 128
"""Ended runs whose counters are kept apart. A run that is among them may come back; older ones are added up for good."""

ENDED_BEFORE = ""
"""In place of a run's name: the sum of those that ended longest ago."""

SILENT_SECONDS = 10.0
"""A worker that is connected and has not reported for so long hangs, and so do the clients that came to it."""

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


class _Heard(NamedTuple):
    worker: str
    report: NodeReport
    at: float


_worker_reports = msgspec.msgpack.Decoder(WorkerReport)


class WorkerReports:
    """`own` makes the report of the store process, whose run is `run`. `clock` counts seconds and never goes back."""

    def __init__(self, own: Callable[[], NodeReport], run: str, clock: Callable[[], float]) -> None:
        self._own = own
        self._run = run
        self._clock = clock
        self._fresh: tuple[float, NodeReport] | None = None
        self._live: dict[str, _Heard] = {}  # by run: while workers are replaced, two have the same name
        self._ended: dict[str, NodeReport] = {}  # by run, the one that ended last at the end
        self._ended_before = NOTHING

    def answer(self, worker: str, theirs: bytes) -> bytes:
        """Takes the report of `worker`, and returns a `NodeAnswer`. Raises `msgspec.DecodeError` for what is no report."""
        told = _worker_reports.decode(theirs)
        now = self._clock()
        self._inherit(told.former)
        counted = told.run in self._live or len(self._live) < MOST_WORKERS
        if counted:
            self._ended.pop(told.run, None)
            self._live[told.run] = _Heard(worker, told.report, now)
        store = self._store(now)
        others = {run: heard for run, heard in self._live.items() if run != told.run}
        counters = {
            self._run: counters_of(store),
            ENDED_BEFORE: self._ended_before,
            **self._ended,
            **{run: counters_of(heard.report) for run, heard in others.items()},
        }
        problems = NodeReport(problems=tuple(self._problems(now, counted)), workers=0)
        reports = (store, *(heard.report for heard in others.values()))
        rest = merged([*map(without_counters, reports), problems])
        return msgspec.msgpack.encode(NodeAnswer(self._run, counters, rest))

    def left(self, worker: str) -> None:
        """A connection of it has ended, and nothing comes by it any more. Where the process lives on, its next report, by
        another connection, takes it back in."""
        for run in [run for run, heard in self._live.items() if heard.worker == worker]:
            self._ended[run] = counters_of(self._live.pop(run).report)
        self._add_up(MOST_ENDED)

    def _inherit(self, former: Counters) -> None:
        for run, counters in former.items():
            if run == ENDED_BEFORE:
                self._ended_before = later(self._ended_before, counters)
            elif run != self._run and run not in self._live:
                self._ended[run] = later(self._ended.get(run, NOTHING), counters)
        # Later than otherwise: other workers are about to bring the same, and those that live to report.
        self._add_up(2 * (MOST_ENDED + MOST_WORKERS))

    def _add_up(self, most: int) -> None:
        while len(self._ended) > most:
            oldest = next(iter(self._ended))
            self._ended_before = merged([self._ended_before, self._ended.pop(oldest)])

    def _problems(self, now: float, counted: bool) -> Iterator[str]:
        for heard in self._live.values():
            if now - heard.at > SILENT_SECONDS:
                yield problem_of(
                    heard.worker.partition("~")[0], f"it is connected and has not reported for more than {SILENT_SECONDS:g} s"
                )
        if not counted:
            yield TOO_MANY

    def _store(self, now: float) -> NodeReport:
        if self._fresh is None or now - self._fresh[0] >= FRESH_SECONDS:
            self._fresh = now, self._own()
        return self._fresh[1]
