"""Merging the reports of several processes into the report of one node."""

import itertools

import msgspec
import pytest

from ropewalk.core.node_reports import (
    NOTHING,
    SUMMED_GAUGES,
    build_latency,
    extract_counters,
    label_problem,
    merge_reports,
    newest,
    strip_counters,
)
from ropewalk.core.stats import Histogram
from ropewalk.model.journal import ShardSpan
from ropewalk.model.report import Latency, NodeReport, SessionTotals
from tests.docs.pages import ROOT


def latency(*seconds: float) -> Latency:
    histogram = Histogram()
    for each in seconds:
        histogram.observe(each)
    return build_latency(histogram)


def worker(number: int) -> NodeReport:
    """A report with different values for each worker, whose sums are exact."""
    return NodeReport(
        problems=(label_problem(str(number), "the app does not run"),),
        connections=number,
        sessions=2 * number,
        streams_listened=3 * number,
        totals=SessionTotals(4 * number, 5 * number),
        counts={"publications": 6 * number, f"only_{number}": 1},
        rates={"publications": 0.5 * number},
        gaps={"trimmed": number},
        refusals={"origin": 2 * number},
        latency=latency(*[0.0625 * number] * number),
        backend={"streams": 10.0 - number},
        archive={"archive_files": 2.0, "archive_reads_waiting": number},
        journal={"record_queue_rows": 7.0, "record_queue_unsent_rows": number},
        application={"app_calls_active": number, "app_circuit_open": float(number == 2)},
        clients=number,
        http_connections=number + 1,
        processes={f"worker-{number}": {"process_open_fds": number}},
    )


STORE = NodeReport(
    problems=("the journal cannot be written",),
    counts={"publications": 100},
    latency=latency(),
    shards=(ShardSpan(0, "e", 1, 9),),
    backend={"streams": 12.0},
    journal={"journal_rows": 3.0, "record_queue_rows": 8.0},
    transactions={"staged_bytes": 4.0},
    broadcasters={"broadcasters_down": 1.0},
    workers=0,
    processes={"store": {"process_open_fds": 9}},
)


def test_values_of_each_process_are_added() -> None:
    node = merge_reports([STORE, worker(1), worker(2)])
    assert (node.connections, node.sessions, node.streams_listened, node.totals) == (3, 6, 9, SessionTotals(12, 15))
    assert node.counts == {"publications": 118, "only_1": 1, "only_2": 1}
    assert (node.rates, node.gaps, node.refusals) == ({"publications": 1.5}, {"trimmed": 3}, {"origin": 6})
    assert (node.workers, node.clients, node.http_connections) == (2, 3, 5)
    assert node.application["app_calls_active"] == 3
    assert node.archive["archive_reads_waiting"] == 3
    assert node.journal["record_queue_unsent_rows"] == 3
    assert node.processes.keys() == {"store", "worker-1", "worker-2"}


def test_shared_values_are_counted_once() -> None:
    node = merge_reports([STORE, worker(1), worker(2)])
    assert node.backend == {"streams": 12.0}
    assert node.archive["archive_files"] == 2
    assert (node.journal["journal_rows"], node.journal["record_queue_rows"]) == (3, 8)
    assert (node.transactions, node.broadcasters) == (STORE.transactions, STORE.broadcasters)
    assert node.shards == STORE.shards
    assert node.application["app_circuit_open"] == 1


def test_merge_is_associative_and_commutative(subtests: pytest.Subtests) -> None:
    for order in list(itertools.permutations(range(4))):
        with subtests.test(order=order):
            reports = [STORE, worker(1), worker(2), worker(3)]
            first, second, third, fourth = (reports[place] for place in order)
            by_pairs = merge_reports([merge_reports([first, second]), merge_reports([third, fourth])])
            one_by_one = merge_reports([first, merge_reports([second, merge_reports([third, fourth])])])
            assert by_pairs == one_by_one == merge_reports([first, second, third, fourth])
            at_once = merge_reports(reports)
            assert msgspec.structs.replace(by_pairs, problems=()) == msgspec.structs.replace(at_once, problems=())
            assert sorted(by_pairs.problems) == sorted(at_once.problems)


def test_empty_report_changes_nothing() -> None:
    assert merge_reports([NOTHING, worker(1)]) == merge_reports([worker(1), NOTHING]) == merge_reports([worker(1)]) == worker(1)
    assert merge_reports([]) == NOTHING


def test_percentiles_are_computed_over_all_observations() -> None:
    quick, slow = [0.0004] * 90, [0.2] * 9 + [30.0]
    node = merge_reports([NodeReport(latency=latency(*quick)), NodeReport(latency=latency(*slow)), NOTHING]).latency
    assert (node.p50, node.p95, node.p99) == (0.0005, 0.25, 0.25)
    assert node.buckets == latency(*quick, *slow).buckets
    assert node.total == pytest.approx(sum(quick + slow))


def test_histograms_with_different_bounds_are_merged() -> None:
    node = merge_reports(
        [
            NodeReport(latency=Latency((("0.5", 2), ("+Inf", 3)))),
            NodeReport(latency=Latency((("0.1", 1), ("1.0", 4), ("+Inf", 4)))),
        ]
    )
    assert node.latency.buckets == (("0.1", 1), ("0.5", 3), ("1.0", 6), ("+Inf", 7))


def test_problem_is_reported_once_and_prefers_the_node_over_a_worker() -> None:
    store = NodeReport(problems=("Redis cannot be reached",), workers=0)
    first = NodeReport(problems=(label_problem("1", "Redis cannot be reached"), label_problem("1", "the app does not run")))
    second = NodeReport(problems=(label_problem("2", "the app does not run"),))
    problems = ("Redis cannot be reached", "worker 1: the app does not run", "worker 2: the app does not run")
    assert merge_reports([store, first, second, first]).problems == problems
    assert merge_reports([merge_reports([first, second]), store]).problems == (*problems[1:], problems[0])


def test_only_the_counters_of_an_ended_process_are_kept() -> None:
    left = extract_counters(worker(2))
    assert left == NodeReport(
        counts=worker(2).counts, gaps={"trimmed": 2}, refusals={"origin": 4}, latency=worker(2).latency, workers=0
    )
    assert merge_reports([strip_counters(worker(2)), left]) == worker(2)


def test_later_report_is_the_one_with_higher_counters() -> None:
    before = extract_counters(worker(1))
    for after in (
        msgspec.structs.replace(before, counts={**before.counts, "publications": 7}),
        msgspec.structs.replace(before, gaps={"trimmed": 2}),
        msgspec.structs.replace(before, latency=latency(0.1, 0.1)),
    ):
        assert newest(before, after) == newest(after, before) == after


def test_report_survives_encoding() -> None:
    node = merge_reports([STORE, worker(1), worker(2)])
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(node), type=NodeReport) == node


SHARED_GAUGES = [
    "streams",
    "history_messages",
    "history_bytes",
    "dedup_keys",
    "sessions_kept",
    "sessions_kept_bytes",
    "presence_members",
    "journal_rows",
    "journal_bytes",
    "journal_segments",
    "journal_batches",
    "journal_groups",
    "journal_groups_refused",
    "journal_written_rows",
    "journal_queue_rows",
    "journal_dropped_rows",
    "journal_lost_rows",
    "journal_consumers",
    "journal_consumer_lag_rows",
    "journal_cut_bytes",
    "journal_damaged_batches",
    "journal_damaged_shards",
    "journal_holes",
    "journal_hole_rows",
    "journal_shards_reset",
    "journal_missing_rows",
    "record_queue_rows",
    "record_queue_dropped_rows",
    "transaction_apps",
    "staged_batches",
    "staged_bytes",
    "archive_files",
    "app_circuit_open",
    "ring_term",
    "ring_nodes",
    "ring_nodes_unreached",
    "ring_shards_held",
]

FIELDS = {
    "workers",
    "connections",
    "sessions",
    "subscriptions",
    "streams_listened",
    "outbox_bytes",
    "history_waiting_bytes",
    "build_info",
}


def test_each_documented_gauge_is_either_shared_or_summed() -> None:
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    rows = [line.split("`") for line in page.splitlines() if line.startswith("| `ropewalk_") and "| gauge |" in line]
    gauges = {row[1].removeprefix("ropewalk_") for row in rows if not row[1].startswith("ropewalk_pipeline_")}
    assert gauges - FIELDS == {*SHARED_GAUGES, *SUMMED_GAUGES}
