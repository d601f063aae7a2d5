"""What the engine refuses is counted by reason, told once at debug level, and summed up in one line by the upkeep."""

import logging

import pytest

from ropewalk.model.limits import Limits
from ropewalk.model.refusals import Refusal
from ropewalk.model.sessions import ConnectRequest, Refused
from tests.unit.engine.workbench import Workbench, public


class Nobody:
    async def authenticate(self, request: ConnectRequest, sid: str) -> Refused:
        return Refused("unauthorized")


def lines(caplog: pytest.LogCaptureFixture, level: int) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.levelno == level]


async def test_a_subscription_and_a_command_that_cannot_be_are_counted_by_reason() -> None:
    async with Workbench(Limits(ping_interval=0, max_subscriptions=1)) as bench:
        client = await bench.connect()
        for stream in ("one", "two", "three"):
            await client.send(command="subscribe", identifier=public(stream))
        await client.send(command="dance")

        assert bench.stats.refusals == {Refusal.SUBSCRIPTIONS: 2, Refusal.UNUSABLE_COMMAND: 1}


async def test_one_line_sums_up_what_was_refused_and_single_ones_are_told_at_debug_level_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "ropewalk")
    async with Workbench(authenticators=[Nobody()]) as bench:
        for _ in range(50):
            await bench.connect()
        bench.clock.now += 1
        await bench.node.upkeep()
        (summary,) = lines(caplog, logging.INFO)
        assert len([line for line in lines(caplog, logging.DEBUG) if line.getMessage() == "refused"]) == 50

    assert summary.getMessage() == "refused in the last 1 s"
    assert vars(summary)["auth"] == 50


async def test_what_was_refused_last_is_told_when_the_node_stops_and_a_full_server_is_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "ropewalk")
    async with Workbench() as bench:
        bench.stats.refusals[Refusal.CONNECTIONS] += 3

    (summary,) = lines(caplog, logging.WARNING)
    assert vars(summary)["connections"] == 3
