"""The metrics page, read back by Prometheus' own parser."""

import platform

import pytest
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from ropewalk.adapters.metrics import MetricsPage, process_figures
from ropewalk.model.history import GapReason
from ropewalk.model.refusals import Refusal
from ropewalk.model.report import Latency, NodeReport, SessionTotals


class Inspected:
    def __init__(self, report: NodeReport) -> None:
        self.next = report

    def report(self) -> NodeReport:
        return self.next


def make_page(report: NodeReport) -> MetricsPage:
    return MetricsPage(Inspected(report))


def samples(page: MetricsPage) -> dict[tuple[str, str], float]:
    """By name and the value of the single label, if any."""
    return {
        (sample.name, next(iter(sample.labels.values()), "")): sample.value
        for family in text_string_to_metric_families(page.render().decode())
        for sample in family.samples
    }


def test_counters_and_gauges_have_their_names() -> None:
    report = NodeReport(
        connections=1,
        sessions=2,
        streams_listened=3,
        totals=SessionTotals(4, 5),
        counts={"publications": 6},
        backend={"history_bytes": 7},
        archive={"archive_files": 8},
        journal={"journal_rows": 9},
        application={"app_calls_active": 10},
        transactions={"staged_bytes": 11},
        workers=12,
        history_waiting_bytes=13,
    )
    seen = samples(make_page(report))
    assert seen["ropewalk_publications_total", ""] == 6
    names = ["connections", "sessions", "streams_listened", "subscriptions", "outbox_bytes", "workers", "history_waiting_bytes"]
    assert [seen[f"ropewalk_{name}", ""] for name in names] == [1, 2, 3, 4, 5, 12, 13]
    names = ["history_bytes", "archive_files", "journal_rows", "app_calls_active", "staged_bytes"]
    assert [seen[f"ropewalk_{name}", ""] for name in names] == [7, 8, 9, 10, 11]


def test_page_has_the_current_values() -> None:
    node = Inspected(NodeReport(sessions=1))
    page = MetricsPage(node)
    assert samples(page)["ropewalk_sessions", ""] == 1
    node.next = NodeReport(sessions=2)
    assert samples(page)["ropewalk_sessions", ""] == 2


def test_gaps_are_counted_by_reason_including_zeros() -> None:
    seen = samples(make_page(NodeReport(gaps={GapReason.TRIMMED: 2, GapReason.AHEAD: 1})))
    assert seen["ropewalk_gaps_total", "trimmed"] == 2
    assert seen["ropewalk_gaps_total", "ahead"] == 1
    assert seen["ropewalk_gaps_total", "dropped"] == 0


@pytest.mark.parametrize("name", ["ropewalk_publish_to_deliver_seconds", "ropewalk_loop_turn_seconds"])
def test_latency_is_a_cumulative_histogram(name: str) -> None:
    observed = Latency((("0.00025", 2), ("0.5", 3), ("+Inf", 4)), 60.3)
    report = NodeReport(turns=observed) if "turn" in name else NodeReport(latency=observed)
    seen = samples(make_page(report))
    assert seen[f"{name}_bucket", "0.00025"] == 2
    assert seen[f"{name}_bucket", "0.5"] == 3
    assert seen[f"{name}_bucket", "+Inf"] == seen[f"{name}_count", ""] == 4
    assert seen[f"{name}_sum", ""] == 60.3


def test_pages_in_one_process_are_independent() -> None:
    pages = [make_page(NodeReport(counts={"deliveries": count})) for count in (5, 0)]
    assert [samples(page)["ropewalk_deliveries_total", ""] for page in pages] == [5, 0]


def test_refusals_are_counted_by_reason_including_zeros() -> None:
    seen = samples(make_page(NodeReport(refusals={Refusal.ORIGIN: 2})))
    assert seen["ropewalk_refusals_total", "origin"] == 2
    assert all(seen["ropewalk_refusals_total", reason] == 0 for reason in Refusal if reason is not Refusal.ORIGIN)


def test_build_info_has_the_versions_as_labels() -> None:
    page = MetricsPage(Inspected(NodeReport()), version="1.2.3").render().decode()
    (line,) = [line for line in page.splitlines() if line.startswith("ropewalk_build_info{")]
    assert 'version="1.2.3"' in line
    assert f'python="{platform.python_version()}"' in line
    assert line.endswith(" 1.0")


needs_proc = pytest.mark.skipif(not process_figures(), reason="the system has no figures of processes")


@needs_proc
def test_figures_of_a_single_process_equal_those_of_the_client_library() -> None:
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    written = generate_latest(registry).decode()
    page = make_page(NodeReport()).render().decode()
    names = [line for line in page.splitlines() if line.startswith("#") and " process_" in line]
    assert names == [line for line in written.splitlines() if line.startswith("#")]
    assert ("process_start_time_seconds", "") in samples(make_page(NodeReport()))


@needs_proc
def test_figures_of_several_processes_are_labelled_by_process() -> None:
    own = process_figures()
    processes = {"store": {**own, "process_open_fds": 5.0}, "worker-1": {"process_cpu_seconds_total": 2.5}}
    seen = samples(make_page(NodeReport(processes=processes)))
    assert seen["process_open_fds", "store"] == 5
    assert seen["process_cpu_seconds_total", "worker-1"] == 2.5
    assert seen["process_start_time_seconds", "store"] == own["process_start_time_seconds"]
    assert {label for name, label in seen if name.startswith("process_")} == {"store", "worker-1"}
