"""Each client receives each message once and in order, while connections of all protocols are cut all the time."""

from pathlib import Path

import pytest

from tests.faults.storm import CLIENTS, FLAGS, StormClient, StormPublisher, all_counted, check_counts, new_seed, storm
from tests.faults.storm_broky import BrokyStormClient, BrokyStormPublisher
from tests.faults.storm_sse import SseStormClient
from tests.metrics import metrics_when
from tests.server import running_server

CUTS = ("before the welcome", "before the history", "in a frame", "before the first message")


@pytest.mark.parametrize("journal", [False, True], ids=["without a journal", "with a journal"])
@pytest.mark.parametrize("workers", [1, 4], ids=["one process", "workers"])
async def test_clients_of_all_protocols_receive_the_same_messages_once_and_in_order(
    workers: int, journal: bool, tmp_path: Path
) -> None:
    """Over TCP, WebSocket and SSE, with publishers over TCP and HTTP."""
    flags = ("--workers", str(workers), *(("--data_dir", str(tmp_path)) if journal else ()))
    with running_server(*FLAGS, *flags) as server:
        clients = (BrokyStormClient, StormClient, SseStormClient)
        record = await storm(server, new_seed(), CLIENTS, clients, (BrokyStormPublisher, StormPublisher))
        found = await metrics_when(server, lambda now: all_counted(now, record))
        check_counts(record, found, CLIENTS)
    assert record.counts["restores"] > CLIENTS // len(clients)
    assert found["restores_missed_total"] > 0
    assert record.counts["pushes cut off"] > 0
    assert record.counts["long replays"] > 0
    assert [where for where in CUTS if not record.counts[f"cuts {where}"]] == []
