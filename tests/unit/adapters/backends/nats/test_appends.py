"""How long an append takes when NATS does not answer, in virtual time."""

import asyncio
from typing import Any, cast

from ropewalk.adapters.backends.nats.appends import Lane
from ropewalk.adapters.backends.nats.plan import PendingAppend
from ropewalk.adapters.backends.nats.shard import JetShard
from ropewalk.model.errors import Unanswered, Unavailable
from ropewalk.model.messages import Publication
from ropewalk.testing.simulation.steps import run

TIMEOUT, RETRY_SECONDS = 2.0, 8.0


class SilentShard:
    """A shard whose verification takes several requests, which all end with a timeout."""

    connected = True
    timeout = TIMEOUT
    max_batch_bytes = 1 << 20

    def __init__(self) -> None:
        self.link = self
        self.tips: dict[str, Any] = {}

    async def verify(self) -> None:
        await asyncio.sleep(3 * TIMEOUT)
        raise Unanswered("no answer")


async def seconds_to_fail(*starts: float) -> list[float]:
    """How long the appends take that begin at these times."""
    lane = Lane(cast(JetShard, SilentShard()), lambda: 0.0, 60.0, lambda stream: 60.0, RETRY_SECONDS)
    loop = asyncio.get_running_loop()

    async def append(start: float) -> float:
        await asyncio.sleep(start)
        pending = PendingAppend([Publication("s", b"1")])
        lane.add(pending)
        began = loop.time()
        try:
            await pending.answer
        except Unavailable:
            return loop.time() - began
        raise AssertionError("it did not fail")

    return await asyncio.gather(*map(append, starts))


def test_append_fails_after_the_retries_and_one_timeout() -> None:
    (seconds,) = run(seconds_to_fail(0.0))
    assert RETRY_SECONDS <= seconds <= RETRY_SECONDS + TIMEOUT


def test_append_that_waits_for_a_failing_one_fails_as_early_as_the_others() -> None:
    starts = [number * 0.25 for number in range(60)]
    assert max(run(seconds_to_fail(*starts))) <= RETRY_SECONDS + TIMEOUT
