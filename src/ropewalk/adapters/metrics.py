"""The metrics page: the report of the node, in Prometheus text. It is read at scrape time and not cached.

Each page has a registry of its own, so that two nodes in one process do not meet in a global one.
"""

import platform
from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from ropewalk.model.history import GapReason
from ropewalk.model.refusals import Refusal
from ropewalk.model.report import Gauges, Latency, NodeReport
from ropewalk.ports import Inspector

PREFIX = "ropewalk_"


class MetricsPage:
    """Renders the report of `inspector`, and what the system has of the process, or of each where the node has several."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self, inspector: Inspector, version: str = "") -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_NodeCollector(inspector, version))

    def render(self) -> bytes:
        return generate_latest(self._registry)


class _NodeCollector(Collector):
    def __init__(self, inspector: Inspector, version: str) -> None:
        self._version = version
        self._inspector = inspector
        self._process = ProcessCollector(registry=None)

    def describe(self) -> list[Metric]:
        """Empty, so that registering reads nothing: the node may not be started yet."""
        return []

    def collect(self) -> Iterator[Metric]:
        yield _build(self._version)
        report = self._inspector.report()
        for name, count in report.counts.items():
            yield CounterMetricFamily(PREFIX + name, _words(name), count)
        for name, size in _gauges(report).items():
            yield GaugeMetricFamily(PREFIX + name, _words(name), size)
        yield _by_reason("gaps", "Gaps reported to clients", GapReason, report.gaps)
        yield _by_reason("refusals", "Refused, dropped or ended requests, messages and connections", Refusal, report.refusals)
        yield _histogram("publish_to_deliver_seconds", "From a publication to its delivery", report.latency)
        yield _histogram("loop_turn_seconds", "How late a timer was because the event loop was busy", report.turns)
        figures = self._process.collect()
        yield from _by_process(figures, report.processes) if report.processes else figures


def process_figures() -> Gauges:
    """What the system has of this process, by sample; empty where that cannot be had."""
    families = ProcessCollector(registry=None).collect()
    return {sample.name: sample.value for family in families for sample in family.samples}


def _by_process(families: Iterable[Metric], processes: Mapping[str, Gauges]) -> Iterator[Metric]:
    """The families with the figures of each process. Any worker may answer, so without a label the values would jump."""
    for family in families:
        labelled = Metric(family.name, family.documentation, family.type)
        for sample in family.samples:
            for process, figures in processes.items():
                if sample.name in figures:
                    labelled.add_sample(sample.name, {"process": process}, figures[sample.name])
        yield labelled


def _gauges(report: NodeReport) -> dict[str, float]:
    return {
        "workers": report.workers,
        "connections": report.connections,
        "sessions": report.sessions,
        "subscriptions": report.totals.subscriptions,
        "streams_listened": report.streams_listened,
        "outbox_bytes": report.totals.outbox_bytes,
        "history_waiting_bytes": report.history_waiting_bytes,
        **report.backend,
        **report.archive,
        **report.journal,
        **report.application,
        **report.transactions,
        **report.broadcasters,
    }


def _build(version: str) -> Metric:
    """Always 1: its labels describe the version, for joining with other metrics and for seeing what a roll-out has reached."""
    labels = {
        "version": version,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
    }
    return InfoMetricFamily(PREFIX + "build", "What runs", labels)


def _words(name: str) -> str:
    return name.replace("_", " ").capitalize()


def _by_reason(name: str, words: str, reasons: Iterable[str], counts: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(PREFIX + name, words, labels=["reason"])
    for reason in reasons:  # those that never happened too: a rate needs a zero to rise from
        family.add_metric([reason], counts.get(reason, 0))
    return family


def _histogram(name: str, words: str, observed: Latency) -> Metric:
    return HistogramMetricFamily(PREFIX + name, words, buckets=observed.buckets, sum_value=observed.total)
