"""What `ropewalk bench` was asked for, what it counts, and what it reports: the same over WebSocket and over TCP."""

import asyncio
import statistics
from collections.abc import Awaitable, Callable

from msgspec import Struct

from ropewalk.model.errors import Unavailable
from ropewalk.ports import Clock

TIMEOUT = 30.0
OPENING_AT_ONCE = 100
NOT_YET = -1.0

SendBatch = Callable[[range], Awaitable[object]]
"""Publishes the messages of these numbers at once, and returns when they are registered."""


class BenchPlan(Struct, frozen=True):
    """What was asked for, checked."""

    url: str
    ca_file: str
    token: str
    key: str
    stream: str
    signed_stream: str
    subscribers: int
    messages: int
    batch: int
    rate: float
    size: int
    tcp: bool = False
    in_flight: int = 1


def outcome() -> asyncio.Future[None]:
    """A future that may fail unseen: the first failure ends the run, and the others say the same."""
    outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    outcome.add_done_callback(lambda done: done.cancelled() or done.exception())
    return outcome


class BenchTally:
    """When each message was sent, and when the last subscriber had it."""

    def __init__(self, plan: BenchPlan, clock: Clock) -> None:
        self._clock = clock
        self._missing = [plan.subscribers] * plan.messages
        self.sent = [NOT_YET] * plan.messages
        self.complete = [0.0] * plan.messages
        self.deliveries = 0
        self.ended = outcome()

    def deliver(self, message: int) -> None:
        if message >= len(self._missing) or self.sent[message] == NOT_YET:
            self.fail("somebody else publishes to this stream; choose another with --stream")
            return
        self.deliveries += 1
        self._missing[message] -= 1
        if not self._missing[message]:
            self.complete[message] = self._clock()
            # each subscriber gets them in order, so the last message is also the last to be complete
            if message == len(self._missing) - 1 and not self.ended.done():
                self.ended.set_result(None)

    def fail(self, why: str) -> None:
        if not self.ended.done():
            self.ended.set_exception(Unavailable(why))


async def drive(plan: BenchPlan, tally: BenchTally, clock: Clock, send: SendBatch) -> None:
    """Until every subscriber has every message. Raises Unavailable if they do not come."""
    requests = enumerate(range(0, plan.messages, plan.batch))
    started = clock()

    async def one_after_another() -> None:
        for request, first in requests:
            if plan.rate:
                await asyncio.sleep(max(0.0, started + request / plan.rate - clock()))
            numbers = range(first, min(first + plan.batch, plan.messages))
            tally.sent[first : numbers.stop] = [clock()] * len(numbers)
            await send(numbers)

    await asyncio.gather(*(one_after_another() for _ in range(plan.in_flight)))
    try:
        await asyncio.wait_for(tally.ended, TIMEOUT)
    except TimeoutError:
        missing = plan.subscribers * plan.messages - tally.deliveries
        raise Unavailable(f"{missing} deliveries did not come within {TIMEOUT:g} seconds") from None


def report(plan: BenchPlan, tally: BenchTally) -> str:
    seconds = tally.complete[-1] - tally.sent[0]
    latencies = sorted((end - start) * 1000 for start, end in zip(tally.sent, tally.complete, strict=True))
    lines = (
        f"{plan.messages} messages to {plan.subscribers} subscribers in {seconds:.2f} s, every one delivered",
        f"deliveries/s   {tally.deliveries / seconds:,.0f}",
        f"latency p50    {statistics.median(latencies):.2f} ms   (publish to last subscriber)",
        f"latency p99    {latencies[min(len(latencies) - 1, len(latencies) * 99 // 100)]:.2f} ms",
    )
    return "\n".join(lines)
