"""Disconnect calls of a server of several processes, some of which are killed: the application gets one for each session."""

import contextlib
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ropewalk.testing.application_orders import seat
from tests.cable import BASE, EXTENDED, Cable
from tests.conformance.applications.restores import subscribed
from tests.conformance.applications.stage import GRPC, PYTHON, Stage, application, running_stage
from tests.process_tree import store, worker_of, workers
from tests.waiting import until

CROWD = 6
WORKERS = ("--workers", "2", "--sessions_ttl", "2s")


@contextlib.asynccontextmanager
async def crowd(stage: Stage) -> AsyncIterator[list[Cable]]:
    """Clients of both protocols: only those of the extended one can resume."""
    async with contextlib.AsyncExitStack() as stack:
        clients = []
        for number in range(2 * CROWD):
            protocol = EXTENDED if number % 2 else BASE
            client = await stack.enter_async_context(stage.client(user=f"user {number}", protocol=protocol))
            client.sid = client.sid or client.received[0]["sid"]
            await subscribed(client, seat())
            clients.append(client)
        yield clients


def disconnect_calls(stage: Stage) -> Counter[str]:
    """Number of calls by session."""
    return Counter(event.sid for event in stage.told() if event.kind == "disconnect")


@pytest.mark.parametrize("kind", [PYTHON, GRPC])
@pytest.mark.parametrize(
    ("with_journal", "store_too"),
    [(False, False), (True, False), (True, True)],
    ids=["worker without a journal", "worker with a journal", "worker and store with a journal"],
)
async def test_only_sessions_of_a_killed_worker_get_a_disconnect_call(
    tmp_path: Path, kind: str, with_journal: bool, store_too: bool
) -> None:
    """The sessions of the other worker outlive the store process too. They get their call when they end."""
    log, journal = tmp_path / "events.jsonl", ("--data_dir", str(tmp_path / "journal")) if with_journal else ()
    with application(kind, log) as named, running_stage(kind, log, *named, *WORKERS, *journal) as stage:
        async with crowd(stage) as clients:
            victim = worker_of(stage.server, clients[0].port)
            lost = {client.sid for client in clients if worker_of(stage.server, client.port) == victim}
            killed = [store(stage.server), victim] if store_too else [victim]
            for number in (signal.SIGSTOP, signal.SIGKILL):  # so that they are gone at the same time
                for pid in killed:
                    os.kill(pid, number)
            await until(lambda: victim not in workers(stage.server))
            await until(lambda: lost <= disconnect_calls(stage).keys(), lambda: disconnect_calls(stage))
            lost.add(await session_that_ends(stage))
            assert disconnect_calls(stage).keys() == lost
            for client in clients:
                if client.sid not in lost:
                    await client.quiet()
        all_sids = lost | {client.sid for client in clients}
        await until(lambda: len(disconnect_calls(stage)) == len(all_sids), lambda: disconnect_calls(stage))
        assert stage.server.stop() == 0
        assert disconnect_calls(stage) == dict.fromkeys(all_sids, 1)


async def session_that_ends(stage: Stage) -> str:
    """Returns its sid when the application has got its Disconnect call, and so all calls that were due before."""
    async with stage.client(user="the last", protocol=BASE) as client:
        sid = str(client.sid or client.received[0]["sid"])
    await until(lambda: sid in disconnect_calls(stage), lambda: disconnect_calls(stage))
    return sid
