"""Pings: interval and precision."""

import asyncio

import pytest

from ropewalk.model.limits import Limits
from tests.unit.engine.workbench import Workbench


async def test_ping_has_the_requested_precision(subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, int]] = [("", 1_800_000_000), ("ms", 1_800_000_000_000), ("xx", 1_800_000_000)]
    for precision, stamp in rows:
        with subtests.test(precision=precision, stamp=stamp):
            async with Workbench(Limits(ping_interval=0.001)) as bench:
                client = await bench.connect(ptp=precision)
                while "ping" not in client.seen():
                    await asyncio.sleep(0)
                assert client.connection.replies()[1] == {"type": "ping", "message": stamp}


async def test_client_can_disable_pings() -> None:
    async with Workbench(Limits(ping_interval=0.001)) as bench:
        disabled, other = await bench.connect(pi="0"), await bench.connect()
        while other.seen().count("ping") < 3:
            await asyncio.sleep(0)
        assert disabled.seen() == ["welcome"]


async def test_ping_interval_is_bounded(subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, float]] = [
        ("5", 5),
        ("0", 0),
        ("-5", 0),
        ("", 7),
        ("often", 7),
        ("1e3", 7),
        ("9" * 400, 3600),
        ("-" + "9" * 400, 0),
        ("9" * 5000, 7),
    ]
    for requested, seconds in rows:
        with subtests.test(requested=requested, seconds=seconds):
            async with Workbench(Limits(ping_interval=7)) as bench:
                client = await bench.connect(pi=requested)
                assert client.seen() == ["welcome"]
                assert client.session.beat == (seconds, 1)
                client.session.connection_lost()
                assert bench.report().connections == 0
