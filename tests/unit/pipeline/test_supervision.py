"""Supervision of a job: attempts, pauses and ends, with a manual clock."""

from ropewalk.core.backoff import Backoff
from ropewalk.model.errors import UserMistake
from ropewalk.pipeline.progress import QueryProgress
from ropewalk.pipeline.supervision import Condition, Policy, Unit, error_summary
from ropewalk.testing.clock import ManualClock

SPARK_ERROR = """\
[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "worker.py", line 1, in process
    rows = read()
ropewalk.pipeline.rows.DataLoss: shard 3, generation 'e': positions 4 to 9 are no longer in the journal.
	at org.apache.spark.Thing
"""


class ScriptedAttempt:
    """An attempt under the control of the test."""

    def __init__(self) -> None:
        self.over = False
        self.error: BaseException | None = None
        self.batches = 0
        self.reports = 0
        self.stopped = False

    def finished(self) -> bool:
        return self.over

    def failure(self) -> BaseException | None:
        return self.error

    def code(self) -> int:
        return 3

    def stop(self) -> None:
        self.stopped = True

    def progress(self) -> QueryProgress:
        return QueryProgress(batches=self.batches, reports=self.reports)

    def fail(self, error: BaseException) -> None:
        self.over, self.error = True, error


class SupervisedJob:
    def __init__(self, restarts: int = 2, every: float | None = None, report_every: float | None = None) -> None:
        self.clock = ManualClock(100.0)
        self.attempts: list[ScriptedAttempt] = []
        policy = Policy(restarts, Backoff(1.0, 60.0), every, report_every)
        self.unit = Unit("job", self._start, policy, self.clock, lambda: 1.0)
        self.unit.tick()

    def _start(self) -> ScriptedAttempt:
        self.attempts.append(ScriptedAttempt())
        return self.attempts[-1]

    def fail(self, error: BaseException | None = None) -> None:
        self.attempts[-1].fail(error or RuntimeError("no"))
        self.unit.tick()

    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.unit.tick()


def test_pauses_between_consecutive_failures_grow() -> None:
    job = SupervisedJob()
    job.fail()
    job.wait(0.9)
    assert len(job.attempts) == 1
    job.wait(0.2)
    assert len(job.attempts) == 2
    job.fail()
    job.wait(1.9)
    assert len(job.attempts) == 2
    job.wait(0.2)
    assert len(job.attempts) == 3


def test_too_many_consecutive_failures_end_the_job() -> None:
    job = SupervisedJob(restarts=1)
    job.fail()
    job.wait(1.1)
    job.fail(RuntimeError("still no"))

    assert (job.unit.condition, job.unit.exit_code, job.unit.error) == (Condition.FAILED, 1, "still no")
    assert job.unit.restarts == 1
    assert job.unit.exhausted


def test_completed_batch_resets_the_failures() -> None:
    job = SupervisedJob(restarts=1)
    for _ in range(5):
        job.fail()
        job.wait(1.1)
        job.attempts[-1].batches = len(job.attempts)
        job.unit.tick()

    assert job.unit.condition is Condition.RUNNING
    assert (job.unit.restarts, job.unit.error) == (5, "")


def test_permanent_error_is_not_retried() -> None:
    errors = (
        UserMistake("no such column"),
        RuntimeError(SPARK_ERROR),
        ModuleNotFoundError("No module named 'pandas'"),
        RuntimeError(SPARK_ERROR.replace("ropewalk.pipeline.rows.DataLoss", "ModuleNotFoundError")),
    )
    for error in errors:
        job = SupervisedJob()
        job.fail(error)
        assert (job.unit.condition, job.unit.exhausted) == (Condition.FAILED, False), error


def test_finished_job_has_the_exit_code_of_its_attempt() -> None:
    job = SupervisedJob()
    job.attempts[-1].over = True
    job.unit.tick()

    assert (job.unit.condition, job.unit.exit_code) == (Condition.DONE, 3)


def test_periodic_job_waits_for_its_interval() -> None:
    job = SupervisedJob(every=10.0)
    job.attempts[-1].over = True
    job.unit.tick()
    assert job.unit.condition is Condition.WAITING
    job.wait(9.9)
    assert len(job.attempts) == 1
    job.wait(0.2)
    assert len(job.attempts) == 2


def test_stop_ends_the_attempt_or_the_pause() -> None:
    running, waiting = SupervisedJob(), SupervisedJob()
    waiting.fail()
    running.unit.stop()
    waiting.unit.stop()

    assert running.attempts[-1].stopped
    assert [job.unit.condition for job in (running, waiting)] == [Condition.STOPPED] * 2
    waiting.wait(60.0)
    assert len(waiting.attempts) == 1


def test_summary_of_an_error_is_the_python_exception() -> None:
    assert error_summary(RuntimeError(SPARK_ERROR)) == (
        "ropewalk.pipeline.rows.DataLoss: shard 3, generation 'e': positions 4 to 9 are no longer in the journal."
    )
    assert error_summary(RuntimeError("\n  first\nsecond")) == "first"
    assert error_summary(KeyError()) == "KeyError"


def test_job_without_a_report_is_silent_until_the_next_one() -> None:
    job = SupervisedJob(report_every=60.0)
    job.wait(60.0)
    assert job.unit.silent == 0.0
    job.wait(30.0)
    assert job.unit.silent == 90.0
    job.attempts[-1].reports = 1
    job.unit.tick()
    assert job.unit.silent == 0.0
    job.wait(61.0)
    job.fail()
    assert job.unit.silent == 0.0, "it waits for its restart"


def test_job_that_never_reports_is_not_silent() -> None:
    job = SupervisedJob()
    job.wait(3600.0)
    assert job.unit.silent == 0.0
