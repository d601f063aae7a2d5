"""`ropewalk bench --tcp`: the subscribers and the publisher of the benchmark over TCP, by the client that programs use."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from ropewalk.cli.bench_plan import OPENING_AT_ONCE, TIMEOUT, BenchPlan, BenchTally, SendBatch
from ropewalk.cli.reaching import explained
from ropewalk.client import (
    CableError,
    Client,
    Gap,
    Pusher,
    Stream,
    SubscriptionRejected,
    TokenExpired,
    Unauthorized,
    connect,
)
from ropewalk.client.addresses import tcp_address
from ropewalk.model.errors import UserMistake


@asynccontextmanager
async def opened(plan: BenchPlan, tally: BenchTally) -> AsyncIterator[SendBatch]:
    """With every subscriber there."""
    async with AsyncExitStack() as stack:
        with explained():
            streams = await _subscribe(plan, stack)
        reading = [asyncio.create_task(_count(stream, tally)) for stream in streams]
        pusher = await stack.enter_async_context(Pusher(plan.url, plan.key, ca_file=plan.ca_file))
        payload = b"x" * plan.size
        try:
            yield lambda numbers: pusher.push(plan.stream, [payload] * len(numbers))
        finally:
            for task in reading:
                task.cancel()


async def _subscribe(plan: BenchPlan, stack: AsyncExitStack) -> list[Stream]:
    slots = asyncio.Semaphore(OPENING_AT_ONCE)
    address = tcp_address(plan.url)
    url = f"{'tls' if address.secure else 'tcp'}://{address.netloc}"

    async def one() -> Stream:
        async with slots:
            connecting = connect(url, plan.token, ca_file=plan.ca_file, ping_interval=None, answer_timeout=TIMEOUT)
            return await _follow(await stack.enter_async_context(connecting), plan)

    try:
        return await asyncio.gather(*(one() for _ in range(plan.subscribers)))
    except SubscriptionRejected as error:
        raise UserMistake(f"{error}: is the stream public, or its signed name right?") from error
    except (Unauthorized, TokenExpired) as error:
        raise UserMistake(f"{error}; --token brings a token that it knows") from error


async def _follow(client: Client, plan: BenchPlan) -> Stream:
    return await (client.subscribe_signed(plan.signed_stream) if plan.signed_stream else client.subscribe(plan.stream))


async def _count(stream: Stream, tally: BenchTally) -> None:
    received = 0
    try:
        async for batch in stream.batches():
            for event in batch:
                if isinstance(event, Gap):
                    tally.fail(f"messages were lost: {event.reason or 'no reason given'}")
                    return
                tally.deliver(received)
                received += 1
    except CableError as error:
        tally.fail(str(error))
