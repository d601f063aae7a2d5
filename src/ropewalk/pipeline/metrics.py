"""The figures of a run for Prometheus, on a port of their own. The same numbers as on the terminal, by job and by shard."""

from collections.abc import Iterable, Sequence

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ropewalk.model.errors import UserMistake
from ropewalk.pipeline.supervision import Condition, Unit

PREFIX = "ropewalk_pipeline_"


class PipelineMetrics(Collector):
    """Reads the units when it is asked; nothing is counted twice."""

    def __init__(self, units: Sequence[Unit]) -> None:
        self._units = units

    def collect(self) -> Iterable[Metric]:
        yield self._counter("rows", "Rows read by a job in this run.", {u.name: u.progress.rows for u in self._units})
        yield self._counter("batches", "Batches a job has done in this run.", {u.name: u.progress.batches for u in self._units})
        yield self._counter(
            "restarts", "Times a job was started again after a failure.", {u.name: u.restarts for u in self._units}
        )
        yield self._counter("late_rows", "Rows (groups of rows, if aggregated) that the watermark dropped.", self._late())
        yield self._gauge("running", "1 while the job runs.", {u.name: u.condition is Condition.RUNNING for u in self._units})
        yield self._gauge("batch_seconds", "How long the last batch took.", {u.name: u.progress.seconds for u in self._units})
        yield self._gauge("rows_per_second", "Pace of the last batch.", {u.name: u.progress.rate for u in self._units})
        yield self._gauge(
            "silent_seconds", "Seconds since the last report, once it is overdue.", {u.name: u.silent for u in self._units}
        )
        yield self._lag()

    def _late(self) -> dict[str, int]:
        return {unit.name: unit.progress.late for unit in self._units}

    def _lag(self) -> Metric:
        family = GaugeMetricFamily(
            PREFIX + "lag_rows", "Rows of the journal that a job has yet to read.", labels=["job", "shard"]
        )
        for unit in self._units:
            for shard, rows in unit.progress.lag.items():
                family.add_metric([unit.name, str(shard)], rows)
        return family

    def _counter(self, name: str, text: str, values: dict[str, int]) -> Metric:
        family = CounterMetricFamily(PREFIX + name, text, labels=["job"])
        for job, value in values.items():
            family.add_metric([job], value)
        return family

    def _gauge(self, name: str, text: str, values: dict[str, float] | dict[str, bool]) -> Metric:
        family = GaugeMetricFamily(PREFIX + name, text, labels=["job"])
        for job, value in values.items():
            family.add_metric([job], float(value))
        return family


class PortTaken(UserMistake):
    """Somebody listens there, mostly another run with the same settings."""


def serve_metrics(units: Sequence[Unit], port: int) -> int:
    """Returns the port, which for 0 is a free one. Raises PortTaken."""
    registry = CollectorRegistry()
    registry.register(PipelineMetrics(units))
    try:
        server, _ = start_http_server(port, "127.0.0.1", registry)
    except OSError as error:
        raise PortTaken(
            f"cannot serve metrics on port {port}: {error.strerror}; --metrics_port names another, 0 takes a free one"
        ) from error
    return int(server.server_port)
