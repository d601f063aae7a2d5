"""Runs jobs: starts and supervises them, displays their progress, and returns when all have ended or a signal arrives.

Without `available_now` all jobs run at once until one is given up. With it they run one after another in the given order, each
to its end, even if an earlier one failed.
"""

import fcntl
import random
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

from msgspec import Struct
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from py4j.protocol import Py4JError

from ropewalk.model.errors import Unavailable, UserMistake
from ropewalk.pipeline.config import seconds
from ropewalk.pipeline.context import BatchOptions, Context, JobOptions, StreamOptions
from ropewalk.pipeline.display import Display, JobLine
from ropewalk.pipeline.progress import ProgressTally, QueryProgress
from ropewalk.pipeline.registry import Job
from ropewalk.pipeline.session import lost_jvm
from ropewalk.pipeline.supervision import INTERRUPTED, RESTARTS, Attempt, Condition, Policy, Unit

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


PREFIX = "ropewalk_pipeline_"


class PipelineMetrics(Collector):
    """Reads the units at each scrape."""

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
    """The metrics port is in use, mostly by another run with the same settings."""


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


LOOK_SECONDS = 0.1
SHOW_SECONDS = 0.5
DEATH_SECONDS = 2.0
STOP_SECONDS = 30.0
SILENT_SECONDS = 60.0
"""A batch that takes longer is shown in the job's line and the metrics."""

T = TypeVar("T")


class RunPlan(Struct, frozen=True):
    """A job, the options of this run, and the name it runs under: a job may run several times, as `derive:NAME`."""

    name: str
    job: Job
    options: JobOptions


class QueryAttempt:
    """A streaming query. It has also finished when its JVM has ended, and then answers no calls."""

    def __init__(self, query: "StreamingQuery", tally: ProgressTally) -> None:
        self._query = query
        self._tally = tally
        self._lost: Unavailable | None = None

    def finished(self) -> bool:
        return bool(self._call(lambda: not self._query.isActive, True))

    def failure(self) -> BaseException | None:
        exception = cast("Callable[[], BaseException | None]", self._query.exception)
        return self._call(exception, None) or self._lost

    def code(self) -> int:
        return 0

    def stop(self) -> None:
        self._call(self._query.stop, None)

    def progress(self) -> QueryProgress:
        self._tally.take(self._call(lambda: self._query.recentProgress, []))
        return self._tally.progress

    def _call(self, call: Callable[[], T], default: T) -> T:
        if self._lost is None:
            try:
                return call()
            except (Py4JError, OSError) as error:
                self._lost = _loss(error)
        return default


def _loss(error: BaseException) -> Unavailable:
    """py4j reports socket errors of a JVM that dies a moment later."""
    deadline = time.monotonic() + DEATH_SECONDS
    while not lost_jvm() and time.monotonic() < deadline:
        time.sleep(LOOK_SECONDS)
    return Unavailable(lost_jvm() or f"Spark does not answer: {error}")


class CallAttempt:
    """A batch job, in a thread of its own. It ends by itself, or when it looks at the context's `stopping`."""

    def __init__(self, plan: RunPlan, context: Context) -> None:
        self._failure: BaseException | None = None
        self._code = 1
        self._stopping = context.stopping
        self._thread = threading.Thread(target=self._work, args=(plan, context), name=plan.name, daemon=True)
        self._thread.start()

    def finished(self) -> bool:
        return not self._thread.is_alive()

    def failure(self) -> BaseException | None:
        return self._failure

    def code(self) -> int:
        return self._code

    def stop(self) -> None:
        """Wait for the job to end, at most STOP_SECONDS."""
        self._stopping.set()
        self._thread.join(STOP_SECONDS)

    def progress(self) -> QueryProgress:
        return QueryProgress()

    def _work(self, plan: RunPlan, context: Context) -> None:
        try:
            self._code = plan.job.body(context, plan.options)
        except BaseException as error:  # for the supervisor, in another thread
            self._failure = _loss(error) if isinstance(error, (Py4JError, OSError)) and lost_jvm() else error


@contextmanager
def locked(state_dir: Path, job: str) -> Iterator[None]:
    """Hold the job's lock file. The lock ends with its process.

    Raises UserMistake if another run holds it: two drivers would corrupt the checkpoint.
    """
    folder = state_dir / "running"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{job}.lock").open("a") as lock:
        try:
            fcntl.flock(lock.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserMistake(
                f"{job} is already running from {state_dir}: stop that run first, or use another --state_dir"
            ) from None
        yield


class PipelineRunner:
    """One run of some jobs."""

    def __init__(self, context: Context, display: Display, available_now: bool = False, restarts: int = RESTARTS) -> None:
        self._context = context
        self._display = display
        self._available_now = available_now
        self._restarts = restarts
        self._stop_requested = threading.Event()
        self._interrupted = False
        self._warned: set[str] = set()

    def run(self, plans: Sequence[RunPlan], metrics_port: int | None = None) -> int:
        """The exit code: 0 if every job ended well or was stopped."""
        units = [self._unit(plan) for plan in plans]
        with ExitStack() as stack:
            for unit in units:
                stack.enter_context(locked(self._context.place.state_dir, unit.name))
            if metrics_port is not None:
                self._serve(plans, units, metrics_port)
            if not all(plan.job.offline for plan in plans):
                self._display.remark("starting Spark …")
                # Spark takes Ctrl-C for itself when it starts, so it starts before we take it back.
                self._context.spark  # noqa: B018
            stack.enter_context(self._signals())
            for stage in [[unit] for unit in units] if self._available_now else [units]:
                self._look_after(stage, units)
            self._report(units, last=True)
        code = max((unit.exit_code for unit in units), default=0)
        return code or (INTERRUPTED if self._interrupted else 0)

    def stop(self) -> None:
        """From any thread: end in order."""
        self._stop_requested.set()

    def _signalled(self, number: int) -> None:
        self._interrupted = self._interrupted or number == signal.SIGINT
        self.stop()

    def _look_after(self, stage: Sequence[Unit], units: Sequence[Unit]) -> None:
        shown = 0.0
        while not all(unit.ended for unit in stage):
            for unit in stage:
                if not unit.ended and self._stop_requested.is_set():
                    unit.stop()
                unit.tick()
                self._end_with(unit)
            if time.monotonic() >= shown:
                self._report(units)
                shown = time.monotonic() + SHOW_SECONDS
            self._stop_requested.wait(LOOK_SECONDS)

    def _end_with(self, unit: Unit) -> None:
        """A job that kept failing may run after a restart of the process, which waits for the end of this run."""
        if unit.exhausted and not self._available_now and not self._stop_requested.is_set():
            self._display.remark(f"{unit.name} was given up after {unit.restarts} restarts: the run ends")
            self.stop()

    def _serve(self, plans: Sequence[RunPlan], units: Sequence[Unit], port: int) -> None:
        """Called before Spark starts. A finite run continues without metrics: mostly a long run with the same settings has the
        port. Raises PortTaken."""
        try:
            self._display.print_line(f"metrics on http://127.0.0.1:{serve_metrics(units, port)}/metrics")
        except PortTaken as taken:
            if not all(self._ends(plan) for plan in plans):
                raise
            self._display.remark(f"warning: {taken}; this run goes on without metrics")

    def _ends(self, plan: RunPlan) -> bool:
        return self._available_now or (isinstance(plan.options, BatchOptions) and not plan.options.every)

    def _report(self, units: Sequence[Unit], last: bool = False) -> None:
        self._display.show([JobLine(u.name, u.condition, u.progress, u.restarts, u.error, u.silent) for u in units], last)
        for unit in units:
            self._warn(unit)

    def _warn(self, unit: Unit) -> None:
        """Warn once about dropped rows and overdue reports."""
        if unit.progress.late:
            self._warn_once(
                f"{unit.name}: rows came later than the watermark allows and were dropped (see `late`); a longer watermark "
                "keeps them"
            )
        if unit.silent:
            self._warn_once(
                f"{unit.name}: Spark is in one batch for more than {SILENT_SECONDS:.0f} s; where other processes keep the "
                'machine busy, "spark.ropewalk.nice" = "0" in [pipeline.spark] gives it an equal share'
            )

    def _warn_once(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            self._display.remark(f"warning: {text}")

    def _unit(self, plan: RunPlan) -> Unit:
        tally = ProgressTally()  # outlives a failed query: its figures are those of the run
        every = plan.options.every if isinstance(plan.options, BatchOptions) and not self._available_now else ""
        reports = seconds(plan.options.trigger) + SILENT_SECONDS if isinstance(plan.options, StreamOptions) else None
        policy = Policy(self._restarts, every=seconds(every) if every else None, report_every=reports)
        context = self._context.named(plan.name)
        return Unit(plan.name, lambda: self._start(plan, context, tally), policy, time.monotonic, random.random)

    def _start(self, plan: RunPlan, context: Context, tally: ProgressTally) -> Attempt:
        if not isinstance(plan.options, StreamOptions):
            return CallAttempt(plan, context)
        writer = plan.job.body(context, plan.options)
        if self._available_now:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{seconds(plan.options.trigger) * 1000:.0f} milliseconds")
        checkpoint = context.checkpoint(plan.options)
        return QueryAttempt(writer.queryName(plan.name).option("checkpointLocation", checkpoint).start(), tally)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Stops the queries in order on Ctrl-C or SIGTERM. Handlers can only be installed in the main thread; elsewhere this
        does nothing."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, lambda caught, _: self._signalled(caught)) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
