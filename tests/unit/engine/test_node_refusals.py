"""Refusals are counted by reason, logged at debug level, and summarized in one line by the upkeep."""

import logging

import pytest

from ropewalk.model.limits import Limits
from ropewalk.model.refusals import Refusal
from ropewalk.model.sessions import ConnectRequest, Refused
from tests.unit.engine.workbench import Workbench, public


class RefuseAll:
    async def authenticate(self, request: ConnectRequest, sid: str) -> Refused:
        return Refused("unauthorized")


def lines(caplog: pytest.LogCaptureFixture, level: int) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.levelno == level]


async def test_refused_subscriptions_and_commands_are_counted_by_reason() -> None:
    async with Workbench(Limits(ping_interval=0, max_subscriptions=1)) as bench:
        client = await bench.connect()
        for stream in ("one", "two", "three"):
            await client.send(command="subscribe", identifier=public(stream))
        await client.send(command="dance")

        assert bench.stats.refusals == {Refusal.SUBSCRIPTIONS: 2, Refusal.UNUSABLE_COMMAND: 1}


async def test_refusals_are_summarized_in_one_line_and_logged_singly_at_debug_level(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "ropewalk")
    async with Workbench(authenticators=[RefuseAll()]) as bench:
        for _ in range(50):
            await bench.connect()
        bench.clock.now += 1
        await bench.node.upkeep()
        (summary,) = lines(caplog, logging.INFO)
        assert len([line for line in lines(caplog, logging.DEBUG) if line.getMessage() == "refused"]) == 50

    assert summary.getMessage() == "refused in the last 1 s"
    assert vars(summary)["auth"] == 50


async def test_last_refusals_are_logged_at_shutdown_and_capacity_refusals_as_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "ropewalk")
    async with Workbench() as bench:
        bench.stats.refusals[Refusal.CONNECTIONS] += 3

    (summary,) = lines(caplog, logging.WARNING)
    assert vars(summary)["connections"] == 3
