"""Disconnect calls for clients that left before a crash of the server, while the application did not answer."""

from pathlib import Path

import pytest

from ropewalk.testing.application_orders import NAME, seat
from tests.cable import BASE, Cable
from tests.conformance.applications.restores import subscribed
from tests.conformance.applications.rpc_process import rpc_process
from tests.metrics import metrics_when
from tests.scenarios.rpc_outage import disconnect_calls
from tests.scenarios.shared_servers import WORKERS
from tests.server import RunningServer, running_server
from tests.waiting import until

CLIENTS = 20

pytestmark = pytest.mark.tier("all")


async def connected(server: RunningServer, number: int) -> Cable:
    client = await Cable.connect(server.cable, protocol=BASE, params={NAME: f"guest {number}"})
    await client.welcomed()
    await subscribed(client, seat())
    return client


@pytest.mark.parametrize(("kind", "flags"), [("grpc", ()), ("http", WORKERS)], ids=["grpc", "http-workers"])
async def test_disconnect_calls_missing_at_a_crash_are_made_once_after_the_restart(
    kind: str, flags: tuple[str, ...], tmp_path: Path
) -> None:
    log = tmp_path / "events.jsonl"
    with rpc_process(kind, log) as backend:
        flags = (*flags, "--data_dir", str(tmp_path / "data"), "--rpc_host", backend.address)
        with running_server(*flags) as before:
            clients = [await connected(before, number) for number in range(CLIENTS)]
            early, late = clients[: CLIENTS // 2], clients[CLIENTS // 2 :]
            for client in early:
                await client.close()
            await until(lambda: disconnect_calls(log) == {client.sid: 1 for client in early})
            backend.kill()
            for client in late:
                await client.close()
            rows = 3 * CLIENTS + len(early)  # connected, subscribed, disconnected; and ended after a call
            await metrics_when(before, lambda now: now["sessions"] == 0 and now["journal_written_rows"] >= rows)
            before.kill()
        assert disconnect_calls(log) == {client.sid: 1 for client in early}
        backend.restart()
        with running_server(*flags) as after:
            await until(lambda: len(disconnect_calls(log)) == CLIENTS)
            await metrics_when(after, lambda now: now["app_calls_active"] == 0)
            assert after.stop() == 0
        assert disconnect_calls(log) == {client.sid: 1 for client in clients}
