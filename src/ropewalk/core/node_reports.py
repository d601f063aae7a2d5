"""Merges the reports of a node's processes into the report of the node.

Merging is associative, and commutative except for the order of problems: so the store process may merge some of the reports,
and a worker may add its own to the result.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import TypeVar

from msgspec.structs import replace

from ropewalk.core.stats import Histogram
from ropewalk.model.report import Gauges, Latency, NodeReport, SessionTotals

Number = TypeVar("Number", int, float)

SUMMED_GAUGES = frozenset(
    {
        "app_calls_active",
        "app_calls_waiting",
        "archive_reads_waiting",
        "broadcasters_down",
        "journal_unsent_rows",
        "record_queue_unsent_rows",
        "redisx_unregistered_entries",
    }
)
"""Gauges of resources that each process has. All others are of a resource that the node has once (its streams, journal,
archive, transactions), or are 1 while a condition holds in any process: their maximum is used."""

NOTHING = NodeReport(workers=0)
"""The neutral element of merging."""


def merge_reports(reports: Sequence[NodeReport]) -> NodeReport:
    return NodeReport(
        problems=_problems(reports),
        impairments=tuple(dict.fromkeys(each for report in reports for each in report.impairments)),
        connections=sum(report.connections for report in reports),
        sessions=sum(report.sessions for report in reports),
        streams_listened=sum(report.streams_listened for report in reports),
        totals=SessionTotals(
            sum(report.totals.subscriptions for report in reports), sum(report.totals.outbox_bytes for report in reports)
        ),
        counts=_sums(report.counts for report in reports),
        rates=_sums(report.rates for report in reports),
        history_waiting_bytes=sum(report.history_waiting_bytes for report in reports),
        gaps=_sums(report.gaps for report in reports),
        refusals=_sums(report.refusals for report in reports),
        latency=_latency([report.latency for report in reports]),
        turns=_latency([report.turns for report in reports]),
        shards=next((report.shards for report in reports if report.shards), ()),
        backend=_gauges(report.backend for report in reports),
        archive=_gauges(report.archive for report in reports),
        journal=_gauges(report.journal for report in reports),
        application=_gauges(report.application for report in reports),
        transactions=_gauges(report.transactions for report in reports),
        broadcasters=_gauges(report.broadcasters for report in reports),
        workers=sum(report.workers for report in reports),
        clients=sum(report.clients for report in reports),
        http_connections=sum(report.http_connections for report in reports),
        processes={name: figures for report in reports for name, figures in report.processes.items()},
        crowds=_sums(report.crowds for report in reports),
    )


def extract_counters(report: NodeReport) -> NodeReport:
    """The part that is kept after its process has ended: the counters since the start, so that no counter of the node falls."""
    return NodeReport(
        counts=report.counts,
        gaps=report.gaps,
        refusals=report.refusals,
        latency=report.latency,
        turns=report.turns,
        workers=NOTHING.workers,
    )


def strip_counters(report: NodeReport) -> NodeReport:
    """The part that ends with its process."""
    return replace(report, counts={}, gaps={}, refusals={}, latency=Latency(), turns=Latency())


def newest(one: NodeReport, other: NodeReport) -> NodeReport:
    """The later one of two reports with counters of one process: counters only grow."""
    return max(one, other, key=_counted)


def _counted(report: NodeReport) -> int:
    counted = (*report.counts.values(), *report.gaps.values(), *report.refusals.values())
    return sum(counted) + report.latency.buckets[-1][1]


def build_latency(observed: Histogram) -> Latency:
    p50, p95, p99 = (observed.quantile(share) for share in (0.5, 0.95, 0.99))
    return Latency(tuple(observed.cumulative()), observed.total, p50, p95, p99)


# --- problems ---------------------------------------------------------------------------------------------------------

_OF_WORKER = "worker "


def label_problem(worker: str, problem: str) -> str:
    return f"{_OF_WORKER}{worker}: {problem}"


def _problems(reports: Sequence[NodeReport]) -> tuple[str, ...]:
    """Without duplicates. A problem of the node is not repeated as a problem of a worker."""
    all_of_them = dict.fromkeys(chain.from_iterable(report.problems for report in reports))
    return tuple(
        problem for problem in all_of_them if not (problem.startswith(_OF_WORKER) and problem.partition(": ")[2] in all_of_them)
    )


# --- numbers ----------------------------------------------------------------------------------------------------------


def _sums(parts: Iterable[Mapping[str, Number]]) -> dict[str, Number]:
    total: dict[str, Number] = {}
    for part in parts:
        for name, number in part.items():
            total[name] = total[name] + number if name in total else number
    return total


def _gauges(parts: Iterable[Gauges]) -> dict[str, float]:
    node: dict[str, float] = {}
    for part in parts:
        for name, size in part.items():
            known = node.get(name)
            if known is None:
                node[name] = size
            else:
                node[name] = known + size if name in SUMMED_GAUGES else max(known, size)
    return node


def _latency(parts: Sequence[Latency]) -> Latency:
    """Merges by the bounds of all reports, which may differ between processes of different versions."""
    counts: dict[str, int] = {}
    for part in parts:
        below = 0
        for bound, running in part.buckets:
            counts[bound] = counts.get(bound, 0) + running - below
            below = running
    bounds = sorted(float(bound) for bound in counts if bound != "+Inf")
    if not bounds:  # none of the processes has a histogram
        return Latency()
    observed = Histogram(tuple(bounds))
    observed.counts = [counts[str(bound)] for bound in bounds] + [counts.get("+Inf", 0)]
    observed.total = sum(part.total for part in parts)
    return build_latency(observed)
