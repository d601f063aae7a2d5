"""The application behind a server of several processes, some of which are lost: it hears of the end of each session once."""

import asyncio
import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from ropewalk.adapters.backends.workers.doubts import DOUBT_SECONDS
from ropewalk.testing.application_orders import seat
from tests.cable import BASE, EXTENDED, Cable
from tests.conformance.applications.restores import subscribed
from tests.conformance.applications.stage import GRPC, PYTHON, Stage, application, running_stage
from tests.process_tree import store, worker_of, workers

WITHIN = 30.0
CROWD = 6
WORKERS = ("--workers", "2", "--sessions_ttl", "2s")


@contextlib.asynccontextmanager
async def crowd(stage: Stage) -> AsyncIterator[list[Cable]]:
    """Clients of both kinds: some may come back after a loss, others do not."""
    async with contextlib.AsyncExitStack() as stack:
        clients = []
        for number in range(2 * CROWD):
            protocol = EXTENDED if number % 2 else BASE
            client = await stack.enter_async_context(stage.client(user=f"user {number}", protocol=protocol))
            client.sid = client.sid or client.received[0]["sid"]
            await subscribed(client, seat())
            clients.append(client)
        yield clients


def told(stage: Stage) -> Counter[str]:
    """How often the application heard of the end of each session."""
    return Counter(event.sid for event in stage.told() if event.kind == "disconnect")


async def until(holds: Callable[[], object], complaint: Callable[[], object] = str) -> None:
    deadline = time.monotonic() + WITHIN
    while not holds():
        assert time.monotonic() < deadline, complaint()
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("kind", [PYTHON, GRPC])
@pytest.mark.parametrize("kept", [False, True], ids=["without a journal", "with a journal"])
async def test_of_the_sessions_of_a_worker_that_is_lost_it_hears_once_and_of_others_nothing(
    tmp_path: Path, kind: str, kept: bool
) -> None:
    log, journal = tmp_path / "events.jsonl", ("--data_dir", str(tmp_path / "journal")) if kept else ()
    with application(kind, log) as named, running_stage(kind, log, *named, *WORKERS, *journal) as stage:
        async with crowd(stage) as clients:
            victim = worker_of(stage.server, clients[0].port)
            lost = {client.sid for client in clients if worker_of(stage.server, client.port) == victim}
            os.kill(victim, signal.SIGKILL)
            await until(lambda: victim not in workers(stage.server))
            await until(lambda: told(stage).keys() == lost, lambda: told(stage))
            for client in clients:
                if client.sid not in lost:
                    await client.quiet()
        await until(lambda: len(told(stage)) == len(clients), lambda: told(stage))
        assert stage.server.stop() == 0
        assert told(stage) == {client.sid: 1 for client in clients}


@pytest.mark.parametrize("kind", [PYTHON, GRPC])
async def test_of_sessions_that_outlive_the_store_it_hears_when_they_end_and_not_before(tmp_path: Path, kind: str) -> None:
    log, journal = tmp_path / "events.jsonl", ("--data_dir", str(tmp_path / "journal"))
    with application(kind, log) as named, running_stage(kind, log, *named, *WORKERS, *journal) as stage:
        async with crowd(stage) as clients:
            os.kill(store(stage.server), signal.SIGKILL)
            await until(lambda: stage.server.log().count("connected to the store again") == 2)
            await asyncio.sleep(DOUBT_SECONDS + 2)  # until then it may turn out which of them are gone
            assert told(stage) == {}
            for client in clients:
                await client.quiet()
        await until(lambda: len(told(stage)) == len(clients), lambda: told(stage))
        assert stage.server.stop() == 0
        assert told(stage) == {client.sid: 1 for client in clients}
