"""In order, once, without a hole: whatever happens to connections while publishers write."""

import os
import secrets

import pytest

from tests.metrics import metrics, metrics_when
from tests.scenarios.storm import CLIENTS, storm
from tests.server import running_server


async def test_after_a_storm_every_client_has_every_message_once_and_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    seed = int(os.environ.get("STORM_SEED") or secrets.randbelow(10**9))
    flags = ("--public", "--history_limit", "100000", "--resume_patience", "60s", "--command_rate", "0")
    with running_server(*flags) as server:
        with capsys.disabled():
            print(f"\nstorm with STORM_SEED={seed}")
        sea = await storm(server, seed)
        found = await metrics(server)
        with capsys.disabled():
            written = sum(len(payloads) for payloads in sea.written.values())
            print(f"  {CLIENTS} clients, {written} messages, as they saw it:", dict(sorted(sea.counts.items())))
            shown = ("sessions_restored", "restores_missed", "replays", "replayed_messages", "deliveries")
            print("  as the server counted it:", {name: int(found[f"{name}_total"]) for name in shown})
        assert sea.counts["cuts"] > CLIENTS
        assert sea.counts["restores"] > CLIENTS
        assert found["sessions_restored_total"] >= sea.counts["restores"]
        assert found["restores_missed_total"] > 0
        assert found["publications_duplicate_total"] == sea.counts["retries"] > 0
        assert [name for name, value in found.items() if name.startswith("gaps_total") and value] == []
        await metrics_when(server, lambda now: now["sessions"] == 0)
        assert "Traceback" not in server.log(), server.log()
