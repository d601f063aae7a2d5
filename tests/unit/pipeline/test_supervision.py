"""A job under supervision: attempts, waits and ends, with a clock that the test owns."""

from ropewalk.core.backoff import Backoff
from ropewalk.model.errors import UserMistake
from ropewalk.pipeline.progress import QueryProgress
from ropewalk.pipeline.supervision import Condition, Policy, Unit, told
from ropewalk.testing.clock import ManualClock

SPARKS = """\
[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "worker.py", line 1, in process
    rows = read()
ropewalk.pipeline.piece_reader.DataLoss: shard 3, epoch 'e': positions 4 to 9 are no longer in the journal.
	at org.apache.spark.Thing
"""


class Scripted:
    """An attempt that does what the test says."""

    def __init__(self) -> None:
        self.over = False
        self.error: BaseException | None = None
        self.batches = 0
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
        return QueryProgress(batches=self.batches)

    def fail(self, error: BaseException) -> None:
        self.over, self.error = True, error


class Rig:
    def __init__(self, restarts: int = 2, every: float | None = None) -> None:
        self.clock = ManualClock(100.0)
        self.attempts: list[Scripted] = []
        policy = Policy(restarts, Backoff(1.0, 60.0), every)
        self.unit = Unit("job", self._start, policy, self.clock, lambda: 1.0)
        self.unit.tick()

    def _start(self) -> Scripted:
        self.attempts.append(Scripted())
        return self.attempts[-1]

    def fail(self, error: BaseException | None = None) -> None:
        self.attempts[-1].fail(error or RuntimeError("no"))
        self.unit.tick()

    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.unit.tick()


def test_each_failure_in_a_row_is_waited_for_longer() -> None:
    rig = Rig()
    rig.fail()
    rig.wait(0.9)
    assert len(rig.attempts) == 1
    rig.wait(0.2)
    assert len(rig.attempts) == 2
    rig.fail()
    rig.wait(1.9)
    assert len(rig.attempts) == 2
    rig.wait(0.2)
    assert len(rig.attempts) == 3


def test_too_many_failures_in_a_row_end_it() -> None:
    rig = Rig(restarts=1)
    rig.fail()
    rig.wait(1.1)
    rig.fail(RuntimeError("still no"))

    assert (rig.unit.condition, rig.unit.exit_code, rig.unit.error) == (Condition.FAILED, 1, "still no")
    assert rig.unit.restarts == 1


def test_a_batch_that_was_done_makes_the_failures_before_it_forgotten() -> None:
    rig = Rig(restarts=1)
    for _ in range(5):
        rig.fail()
        rig.wait(1.1)
        rig.attempts[-1].batches = len(rig.attempts)
        rig.unit.tick()

    assert rig.unit.condition is Condition.RUNNING
    assert (rig.unit.restarts, rig.unit.error) == (5, "")


def test_what_another_attempt_cannot_mend_is_given_up_at_once() -> None:
    mistaken, lost = Rig(), Rig()
    mistaken.fail(UserMistake("no such column"))
    lost.fail(RuntimeError(SPARKS))

    assert [rig.unit.condition for rig in (mistaken, lost)] == [Condition.FAILED] * 2


def test_a_good_end_has_the_code_of_the_work() -> None:
    rig = Rig()
    rig.attempts[-1].over = True
    rig.unit.tick()

    assert (rig.unit.condition, rig.unit.exit_code) == (Condition.DONE, 3)


def test_what_is_to_be_done_again_waits_for_its_time() -> None:
    rig = Rig(every=10.0)
    rig.attempts[-1].over = True
    rig.unit.tick()
    assert rig.unit.condition is Condition.WAITING
    rig.wait(9.9)
    assert len(rig.attempts) == 1
    rig.wait(0.2)
    assert len(rig.attempts) == 2


def test_stopping_ends_the_attempt_or_the_waiting() -> None:
    running, waiting = Rig(), Rig()
    waiting.fail()
    running.unit.stop()
    waiting.unit.stop()

    assert running.attempts[-1].stopped
    assert [rig.unit.condition for rig in (running, waiting)] == [Condition.STOPPED] * 2
    waiting.wait(60.0)
    assert len(waiting.attempts) == 1


def test_the_sentence_that_is_told_is_the_one_of_the_code_that_failed() -> None:
    assert told(RuntimeError(SPARKS)) == (
        "ropewalk.pipeline.piece_reader.DataLoss: shard 3, epoch 'e': positions 4 to 9 are no longer in the journal."
    )
    assert told(RuntimeError("\n  first\nsecond")) == "first"
    assert told(KeyError()) == "KeyError"
