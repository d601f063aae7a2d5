"""The metrics page, read back by Prometheus' own parser."""

import platform
from dataclasses import fields

from prometheus_client.parser import text_string_to_metric_families

from ropewalk.adapters.metrics.prometheus import MetricsPage
from ropewalk.core.stats import Stats
from ropewalk.model.history import GapReason
from ropewalk.model.refusals import Refusal


class Gauges:
    def __init__(self) -> None:
        self.sizes: dict[str, float] = {}

    def health(self) -> list[str]:
        return []

    def gauges(self) -> dict[str, float]:
        return self.sizes


def samples(page: MetricsPage) -> dict[tuple[str, str], float]:
    """By name and the value of the one label, if there is one."""
    return {
        (sample.name, next(iter(sample.labels.values()), "")): sample.value
        for family in text_string_to_metric_families(page.render().decode())
        for sample in family.samples
    }


def test_every_counter_of_the_node_is_on_the_page() -> None:
    stats = Stats()
    numbers = [field.name for field in fields(stats) if isinstance(getattr(stats, field.name), int)]
    for value, name in enumerate(numbers, 1):
        setattr(stats, name, value)
    seen = samples(MetricsPage(stats, Gauges()))
    assert len(numbers) > 10
    for value, name in enumerate(numbers, 1):
        assert seen[f"ropewalk_{name}_total", ""] == value


def test_the_page_shows_what_is_so_when_it_is_read() -> None:
    stats, gauges = Stats(), Gauges()
    page = MetricsPage(stats, gauges)
    assert samples(page)["ropewalk_publications_total", ""] == 0
    stats.publications += 3
    gauges.sizes = {"sessions": 2, "history_bytes": 1.5}
    seen = samples(page)
    assert seen["ropewalk_publications_total", ""] == 3
    assert seen["ropewalk_sessions", ""] == 2
    assert seen["ropewalk_history_bytes", ""] == 1.5


def test_gaps_are_counted_by_reason_also_those_that_never_happened() -> None:
    stats = Stats()
    stats.gaps[GapReason.TRIMMED] += 2
    stats.gaps[GapReason.AHEAD] += 1
    seen = samples(MetricsPage(stats, Gauges()))
    assert seen["ropewalk_gaps_total", "trimmed"] == 2
    assert seen["ropewalk_gaps_total", "ahead"] == 1
    assert seen["ropewalk_gaps_total", "dropped"] == 0


def test_latency_is_a_histogram_whose_buckets_count_up() -> None:
    stats = Stats()
    for seconds in (0.0002, 0.0002, 0.3, 60.0):
        stats.publish_to_deliver.observe(seconds)
    seen = samples(MetricsPage(stats, Gauges()))
    name = "ropewalk_publish_to_deliver_seconds"
    assert seen[f"{name}_bucket", "0.0001"] == 0
    assert seen[f"{name}_bucket", "0.00025"] == 2
    assert seen[f"{name}_bucket", "0.5"] == 3
    assert seen[f"{name}_bucket", "+Inf"] == seen[f"{name}_count", ""] == 4
    assert seen[f"{name}_sum", ""] == 0.0002 + 0.0002 + 0.3 + 60.0


def test_two_pages_in_one_process_do_not_mix() -> None:
    one, other = Stats(), Stats()
    one.deliveries = 5
    pages = MetricsPage(one, Gauges()), MetricsPage(other, Gauges())
    assert [samples(page)["ropewalk_deliveries_total", ""] for page in pages] == [5, 0]


def test_refusals_are_counted_by_reason_also_those_that_never_happened() -> None:
    stats = Stats()
    stats.refusals[Refusal.ORIGIN] += 2
    seen = samples(MetricsPage(stats, Gauges()))
    assert seen["ropewalk_refusals_total", "origin"] == 2
    assert all(seen["ropewalk_refusals_total", reason] == 0 for reason in Refusal if reason is not Refusal.ORIGIN)


def test_what_runs_is_told_by_the_labels_of_one_metric() -> None:
    page = MetricsPage(Stats(), Gauges(), version="1.2.3").render().decode()
    (line,) = [line for line in page.splitlines() if line.startswith("ropewalk_build_info{")]
    assert 'version="1.2.3"' in line
    assert f'python="{platform.python_version()}"' in line
    assert line.endswith(" 1.0")
