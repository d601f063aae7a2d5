"""The application hears of clients that left just before the server was killed, though it could not be told then."""

from collections import Counter
from pathlib import Path

import pytest

from ropewalk.testing import application_events as events
from ropewalk.testing.application_orders import NAME, seat
from tests.cable import BASE, Cable
from tests.conformance.applications.restores import subscribed
from tests.conformance.applications.rpc_process import rpc_process
from tests.metrics import metrics_when
from tests.scenarios.rpc_outage import until
from tests.server import RunningServer, running_server

CLIENTS = 20

pytestmark = pytest.mark.usefixtures("processes")


def told(log: Path) -> Counter[str]:
    """How often the application heard of the end of each session."""
    return Counter(event.sid for event in events.read(log) if event.kind == "disconnect")


async def seated(server: RunningServer, number: int) -> Cable:
    client = await Cable.connect(server.cable, protocol=BASE, params={NAME: f"guest {number}"})
    await client.welcomed()
    await subscribed(client, seat())
    return client


@pytest.mark.parametrize("kind", ["grpc", "http"])
async def test_clients_that_left_before_a_crash_are_told_of_after_it_and_the_others_are_not(kind: str, tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl"
    with rpc_process(kind, log) as backend:
        flags = ("--data_dir", str(tmp_path / "data"), "--rpc_host", backend.address)
        with running_server(*flags) as before:
            clients = [await seated(before, number) for number in range(CLIENTS)]
            early, late = clients[: CLIENTS // 2], clients[CLIENTS // 2 :]
            for client in early:
                await client.close()
            await until(lambda: told(log) == {client.sid: 1 for client in early})
            backend.kill()
            for client in late:
                await client.close()
            rows = 3 * CLIENTS + len(early)  # connected, subscribed, disconnected; and ended where it was told
            await metrics_when(before, lambda now: now["sessions"] == 0 and now["journal_written_rows"] >= rows)
            before.kill()
        assert told(log) == {client.sid: 1 for client in early}
        backend.restart()
        with running_server(*flags) as after:
            await until(lambda: len(told(log)) == CLIENTS)
            await metrics_when(after, lambda now: now["app_calls_active"] == 0)
            assert after.stop() == 0
        assert told(log) == {client.sid: 1 for client in clients}
