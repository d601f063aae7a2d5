"""The metrics page: the report of the node, in Prometheus text. It is asked for at scrape time, nothing is kept twice.

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
from ropewalk.model.report import Latency, NodeReport
from ropewalk.ports import Inspector

PREFIX = "ropewalk_"


class MetricsPage:
    """Renders the report of `inspector`, and gauges of the process where they can be had."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self, inspector: Inspector, version: str = "") -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_NodeCollector(inspector, version))
        ProcessCollector(registry=self._registry)

    def render(self) -> bytes:
        return generate_latest(self._registry)


class _NodeCollector(Collector):
    def __init__(self, inspector: Inspector, version: str) -> None:
        self._version = version
        self._inspector = inspector

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
        yield _by_reason("gaps", "Gaps that clients were told about", GapReason, report.gaps)
        yield _by_reason("refusals", "What was refused, dropped or ended", Refusal, report.refusals)
        yield _latency(report.latency)


def _gauges(report: NodeReport) -> dict[str, float]:
    return {
        "connections": report.connections,
        "sessions": report.sessions,
        "subscriptions": report.totals.subscriptions,
        "streams_listened": report.streams_listened,
        "outbox_bytes": report.totals.outbox_bytes,
        **report.backend,
        **report.archive,
        **report.journal,
        **report.application,
        **report.transactions,
        **report.broadcasters,
    }


def _build(version: str) -> Metric:
    """Always 1: its labels say what runs, for joining with other metrics and for seeing what a roll-out has reached."""
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


def _latency(latency: Latency) -> Metric:
    return HistogramMetricFamily(
        PREFIX + "publish_to_deliver_seconds",
        "From a publication to its delivery",
        buckets=latency.buckets,
        sum_value=latency.total,
    )
