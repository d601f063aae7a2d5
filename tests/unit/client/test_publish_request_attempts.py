"""Retries of a batch: when, how often, and when not."""

from collections.abc import Sequence

import msgspec
import pytest
from msgspec.structs import replace

from ropewalk.client.connection import SessionOptions
from ropewalk.client.errors import PublishUnavailable
from ropewalk.client.publish_request import ATTEMPTS, Attempts, Draft, NotSent, RetryLimits
from ropewalk.core.backoff import Backoff
from ropewalk.testing.clock import ManualClock

LOST, NOT_SENT = PublishUnavailable("no answer"), NotSent("no connection")
STORED, TRANSIENT = Draft("a", 1), Draft("a", 1, transient=True)
STEADY = Backoff(first=1.0, cap=4.0)


def attempts_for(drafts: Sequence[Draft], limits: RetryLimits, clock: ManualClock | None = None) -> Attempts:
    return Attempts(drafts, replace(limits, chance=lambda: 1.0), clock or ManualClock())


def uids(attempts: Attempts) -> list[str]:
    return [entry.get("uid", "") for entry in msgspec.json.decode(attempts.body)]


def test_uid_is_generated_unless_transient() -> None:
    given, own, transient = uids(attempts_for([STORED, Draft("a", 1, uid="mine"), TRANSIENT], RetryLimits()))
    assert (len(given), own, transient) == (32, "mine", "")


def test_default_attempts_outlast_a_restart() -> None:
    attempts = Attempts([STORED], RetryLimits(chance=lambda: 0.0), ManualClock())
    assert sum(attempts.pause(LOST) for _ in range(ATTEMPTS - 1)) >= 20
    assert RetryLimits().attempts == SessionOptions(ManualClock()).attempts == ATTEMPTS


def test_pauses_grow_until_the_attempts_are_exhausted() -> None:
    attempts = attempts_for([STORED], RetryLimits(4, STEADY))
    assert [attempts.pause(LOST) for _ in range(3)] == [1.0, 2.0, 4.0]
    with pytest.raises(PublishUnavailable) as raised:
        attempts.pause(LOST)
    assert raised.value is LOST


def test_batch_with_a_transient_message_is_retried_only_if_not_sent() -> None:
    attempts = attempts_for([STORED, TRANSIENT], RetryLimits(backoff=STEADY))
    assert attempts.pause(NOT_SENT) == 1.0
    with pytest.raises(PublishUnavailable):
        attempts.pause(LOST)


def test_timeout_of_an_attempt_is_limited_by_the_total_time() -> None:
    clock = ManualClock()
    attempts = attempts_for([STORED], RetryLimits(timeout=3.0, total=4.0), clock)
    assert attempts.timeout() == 3.0
    clock.advance(2.0)
    assert attempts.timeout() == 2.0
    clock.advance(5.0)
    assert 0 < attempts.timeout() < 0.01


def test_no_pause_exceeds_the_total_time() -> None:
    clock = ManualClock()
    attempts = attempts_for([STORED], RetryLimits(backoff=STEADY, total=4.0), clock)
    clock.advance(1.0)
    assert attempts.pause(LOST) == 1.0
    clock.advance(1.0)
    with pytest.raises(PublishUnavailable):
        attempts.pause(LOST)
