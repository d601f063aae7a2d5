"""In order, once, without a hole: whatever happens to connections while publishers write."""

import os
import secrets
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from tests.metrics import metrics_when
from tests.scenarios.storm import CLIENTS, AnyClient, Sea, StormClient, storm
from tests.scenarios.storm_sse import SseStormClient
from tests.server import RunningServer, running_server

FLAGS = ("--public", "--sse", "--history_limit", "100000", "--resume_patience", "60s", "--command_rate", "0")
CHANNELS = ("--app", "tests.scenarios.storm_channels:app", "--app_dir", str(Path(__file__).parents[2]))


async def weathered(
    client: Callable[[RunningServer, Sea, Random], AnyClient], workers: int, capsys: pytest.CaptureFixture[str]
) -> tuple[Sea, dict[str, float]]:
    """What the clients and what the server counted, after a storm that left nothing behind."""
    seed = int(os.environ.get("STORM_SEED") or secrets.randbelow(10**9))
    with running_server(*FLAGS, *CHANNELS, "--workers", str(workers)) as server:
        with capsys.disabled():
            print(f"\nstorm on {workers} workers with STORM_SEED={seed}")
        sea = await storm(server, seed, client)
        found = await metrics_when(server, lambda now: _all_told(now, sea))
        with capsys.disabled():
            written = sum(len(payloads) for payloads in sea.written.values())
            print(f"  {CLIENTS} clients, {written} messages, as they saw it:", dict(sorted(sea.counts.items())))
            shown = ("sessions_restored", "restores_missed", "replays", "replayed_messages", "deliveries")
            print("  as the server counted it:", {name: int(found[f"{name}_total"]) for name in shown})
        assert sea.counts["cuts"] > CLIENTS
        assert found["publications_duplicate_total"] == sea.counts["retries"] > 0
        assert [name for name, value in found.items() if name.startswith("gaps_total") and value] == []
        assert "Traceback" not in server.log(), server.log()
    return sea, found


def _all_told(found: dict[str, float], sea: Sea) -> bool:
    """A worker hears of what the others counted a moment later."""
    counted = found["publications_duplicate_total"] >= sea.counts["retries"]
    return counted and found["sessions_restored_total"] >= sea.counts["restores"] and found["sessions"] == 0


@pytest.mark.parametrize("workers", [1, 4])
async def test_after_a_storm_every_client_has_every_message_once_and_in_order(
    workers: int, capsys: pytest.CaptureFixture[str]
) -> None:
    sea, found = await weathered(StormClient, workers, capsys)
    assert sea.counts["restores"] > CLIENTS
    assert found["restores_missed_total"] > 0


@pytest.mark.parametrize("workers", [1, 4])
async def test_after_a_storm_every_sse_client_has_every_message_once_and_in_order(
    workers: int, capsys: pytest.CaptureFixture[str]
) -> None:
    sea, _ = await weathered(SseStormClient, workers, capsys)
    assert sea.counts["cuts before the first message"] > 0
    assert sea.counts["long replays"] > 0
