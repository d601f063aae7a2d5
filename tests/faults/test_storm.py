"""In order, once, without a hole: whatever happens to connections while publishers write."""

import os
import secrets
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.faults.storm import CLIENTS, AnyClient, AnyPublisher, Sea, StormClient, StormPublisher, storm
from tests.faults.storm_broky import BrokyStormClient, BrokyStormPublisher
from tests.faults.storm_sse import SseStormClient
from tests.metrics import metrics_when
from tests.server import running_server

FLAGS = ("--public", "--sse", "--history_limit", "100000", "--resume_patience", "60s", "--command_rate", "0")
FEWER = CLIENTS * 2 // 5  # where there are more storms
CHANNELS = ("--app", "tests.faults.storm_channels:app", "--app_dir", str(Path(__file__).parents[2]))


def seed() -> int:
    """Of the storm that comes: printed, so that it can come again."""
    chosen = int(os.environ.get("STORM_SEED") or secrets.randbelow(10**9))
    print(f"\nSTORM_SEED={chosen}")
    return chosen


async def weathered(
    workers: int,
    count: int,
    clients: Sequence[AnyClient],
    publishers: Sequence[AnyPublisher] = (StormPublisher,),
    *flags: str,
) -> tuple[Sea, dict[str, float]]:
    """What the clients and what the server counted, after a storm that left nothing behind."""
    with running_server(*FLAGS, *CHANNELS, "--workers", str(workers), *flags) as server:
        sea = await storm(server, seed(), count, clients, publishers)
        found = await metrics_when(server, lambda now: all_told(now, sea))
        judge(sea, found, count)
        assert "Traceback" not in server.log(), server.log()
    return sea, found


def all_told(found: dict[str, float], sea: Sea) -> bool:
    """A worker hears of what the others counted a moment later."""
    counted = found["publications_duplicate_total"] >= sea.counts["retries"]
    return counted and found["sessions_restored_total"] >= sea.counts["restores"] and found["sessions"] == 0


def judge(sea: Sea, found: dict[str, float], count: int) -> None:
    written = sum(len(payloads) for payloads in sea.written.values())
    print(f"  {count} clients, {written} messages, as they saw it:", dict(sorted(sea.counts.items())))
    shown = ("sessions_restored", "restores_missed", "replays", "replayed_messages", "deliveries")
    print("  as the server counted it:", {name: int(found[f"{name}_total"]) for name in shown})
    assert sea.counts["cuts"] > count
    retries, repeats = sea.counts["retries"], sea.counts["repeats"]  # the latter may have been the first to arrive
    assert 0 < retries <= found["publications_duplicate_total"] <= retries + repeats
    assert [name for name, value in found.items() if name.startswith("gaps_total") and value] == []


@pytest.mark.parametrize("workers", [1, 4])
async def test_after_a_storm_every_client_has_every_message_once_and_in_order(workers: int) -> None:
    sea, found = await weathered(workers, CLIENTS, [StormClient])
    assert sea.counts["restores"] > CLIENTS
    assert found["restores_missed_total"] > 0


@pytest.mark.parametrize("workers", [1, 4])
async def test_after_a_storm_every_sse_client_has_every_message_once_and_in_order(workers: int) -> None:
    sea, _ = await weathered(workers, CLIENTS, [SseStormClient])
    assert sea.counts["cuts before the first message"] > 0
    assert sea.counts["long replays"] > 0


@pytest.mark.parametrize(("workers", "journal"), [(1, False), (1, True), (4, False), (4, True)])
async def test_clients_of_every_kind_on_the_same_streams_have_the_same_messages_at_the_same_positions(
    workers: int, journal: bool, tmp_path: Path
) -> None:
    """Over TCP, WebSocket and SSE, with producers over TCP and HTTP: what one of them got at an offset all got there."""
    flags = ("--data_dir", str(tmp_path)) if journal else ()
    clients: list[AnyClient] = [BrokyStormClient, BrokyStormClient, StormClient, SseStormClient]
    sea, _ = await weathered(workers, FEWER, clients, [BrokyStormPublisher, StormPublisher], *flags)
    for where in ("before the welcome", "before the history", "in a frame"):
        assert sea.counts[f"cuts {where}"] > 0, where
    assert sea.counts["pushes cut off"] > 0
