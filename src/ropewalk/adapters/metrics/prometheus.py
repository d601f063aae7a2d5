"""The metrics page: what the node counts, in Prometheus text. Everything is read at scrape time, nothing is kept twice.

Each page has a registry of its own, so that two nodes in one process do not meet in a global one.
"""

import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from ropewalk.core.stats import Histogram, Stats
from ropewalk.model.history import GapReason
from ropewalk.model.refusals import Refusal
from ropewalk.ports import Inspector

PREFIX = "ropewalk_"

Gauges = Callable[[], dict[str, float]]


class MetricsPage:
    """Renders the counters of `stats`, the gauges of `inspector` and `more`, and those of the process where they can be had."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self, stats: Stats, inspector: Inspector, more: Gauges = dict, version: str = "") -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_NodeCollector(stats, inspector, more, version))
        ProcessCollector(registry=self._registry)

    def render(self) -> bytes:
        return generate_latest(self._registry)


class _NodeCollector(Collector):
    def __init__(self, stats: Stats, inspector: Inspector, more: Gauges, version: str) -> None:
        self._version = version
        self._stats = stats
        self._inspector = inspector
        self._more = more

    def describe(self) -> list[Metric]:
        """Empty, so that registering reads nothing: the node may not be started yet."""
        return []

    def collect(self) -> Iterator[Metric]:
        yield _build(self._version)
        for field in fields(self._stats):
            value = getattr(self._stats, field.name)
            if isinstance(value, int):
                yield CounterMetricFamily(PREFIX + field.name, _words(field.name), value)
        for name, size in {**self._inspector.gauges(), **self._more()}.items():
            yield GaugeMetricFamily(PREFIX + name, _words(name), size)
        yield _by_reason("gaps", "Gaps that clients were told about", GapReason, self._stats.gaps)
        yield _by_reason("refusals", "What was refused, dropped or ended", Refusal, self._stats.refusals)
        yield _latency(self._stats.publish_to_deliver)


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
        family.add_metric([reason], counts[reason])
    return family


def _latency(histogram: Histogram) -> Metric:
    return HistogramMetricFamily(
        PREFIX + "publish_to_deliver_seconds",
        "From a publication to its delivery",
        buckets=histogram.cumulative(),
        sum_value=histogram.total,
    )
