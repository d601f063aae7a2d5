"""Requests by time: how a history that does not reach back that far is reported."""

from ropewalk.model.rules import SinceGaps, StreamRule
from tests.unit.engine.workbench import Workbench, public

SHORT = StreamRule("short", history_limit=3)


async def test_request_by_time_confirms_with_the_trimmed_gap() -> None:
    async with Workbench(rules=[SHORT]) as bench:
        (receipt, *_) = await bench.publish("short", *"123456")
        client = await bench.connect()
        await client.send(command="subscribe", identifier=public("short"), history={"since": bench.clock() - 3600})
        assert client.seen() == ["welcome", "confirm_subscription", 4, 5, 6, "confirm_history"]
        assert client.connection.replies()[-1] == {
            "type": "confirm_history",
            "identifier": public("short"),
            "reason": "trimmed",
            "streams": {"short": {"reason": "trimmed", "epoch": receipt.epoch, "oldest": 4, "tip": 6}},
        }
        assert bench.stats.gaps == {"trimmed": 1}


async def test_rule_that_rejects_a_trimmed_request_by_time() -> None:
    rules = [StreamRule("short", history_limit=3, since_gaps=SinceGaps.REJECT)]
    async with Workbench(rules=rules) as bench:
        await bench.publish("short", *"123456")
        client = await bench.connect()
        await client.send(command="subscribe", identifier=public("short"), history={"since": bench.clock() - 3600})
        assert client.seen() == ["welcome", "confirm_subscription", "reject_history", 4, 5, 6]
        (rejected,) = [reply for reply in client.connection.replies() if reply.get("type") == "reject_history"]
        assert (rejected["reason"], rejected["streams"]["short"]["oldest"]) == ("trimmed", 4)
        await client.send(command="history", identifier=public("short"), history={"since": bench.clock() + 1})
        assert client.seen()[6:] == ["confirm_history"]


async def test_request_by_time_with_positions_reports_the_trimmed_gap_first() -> None:
    async with Workbench(rules=[SHORT]) as bench:
        (receipt, *_) = await bench.publish("short", *"123456")
        client = await bench.connect(positions="1")
        await client.send(command="subscribe", identifier=public("short"), history={"since": bench.clock() - 3600})
        assert client.seen() == ["welcome", "confirm_subscription", "reject_history", 4, 5, 6, "confirm_history"]
        assert client.connection.replies()[-1]["streams"] == {"short": {"epoch": receipt.epoch, "tip": 6}}


async def test_request_by_time_within_history_is_confirmed_without_a_gap() -> None:
    async with Workbench(rules=[SHORT]) as bench:
        await bench.publish("short", *"123456")
        bench.clock.now += 10
        await bench.publish("short", "7")
        client = await bench.connect()
        await client.send(command="subscribe", identifier=public("short"), history={"since": bench.clock() - 5})
        assert client.seen() == ["welcome", "confirm_subscription", 7, "confirm_history"]
        assert client.connection.replies()[-1] == {"type": "confirm_history", "identifier": public("short")}
        assert not bench.stats.gaps
